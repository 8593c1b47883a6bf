"""What a model's `config.json` says that decides how a study for it should look. Never fails: unknown is a value."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

CONFIG_LIMIT = 4 * 1024 * 1024
"""Bytes. A configuration is a few kilobytes."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """Traits of a model.

    Attributes:
        source: where they were read, empty where the model is not on this machine.
        architecture: class name, empty where unknown.
        experts: experts of a layer, 0 for a dense model.
        quantisation: method that the weights come with, empty for none.
        context: longest context in tokens, 0 where unknown.
        weight_bytes: size of the weight files, 0 where unknown.
    """

    source: str = ""
    architecture: str = ""
    experts: int = 0
    quantisation: str = ""
    context: int = 0
    weight_bytes: int = 0

    @property
    def known(self) -> bool:
        """A configuration was found and read."""
        return bool(self.source)


def read_traits(model: str) -> ModelTraits:
    """Traits of a model in a local folder or in the Hugging Face cache of this machine; nothing is downloaded."""
    folder = _folder(model)
    if folder is None:
        return ModelTraits()
    config = _config(folder / "config.json")
    if config is None:
        return ModelTraits()
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    return ModelTraits(
        source=str(folder / "config.json"),
        architecture=_first_text(config.get("architectures")),
        experts=next((found for name in _EXPERTS if (found := _whole(config.get(name, inner.get(name)))) > 1), 0),
        quantisation=_quantisation(config),
        context=_whole(config.get("max_position_embeddings", inner.get("max_position_embeddings"))),
        weight_bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file()),
    )


def _folder(model: str) -> Path | None:
    try:
        own = Path(model).expanduser()
        if (own / "config.json").is_file():
            return own
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}" / "snapshots"
        found = [path.parent for path in hub.glob("*/config.json")]
        return max(found, key=lambda path: path.stat().st_mtime) if found else None
    except (OSError, ValueError, RuntimeError):
        return None


def _config(path: Path) -> dict[str, object] | None:
    try:
        if path.stat().st_size > CONFIG_LIMIT:
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _quantisation(config: dict[str, object]) -> str:
    section = config.get("quantization_config")
    method = section.get("quant_method") if isinstance(section, dict) else None
    return method if isinstance(method, str) else ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _first_text(value: object) -> str:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""
