"""Facts about vLLM's arguments that exporters need, from `deployment.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from autotune.space.config import EngineConfig, FrozenValue


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """See `deployment.toml`."""

    gpu_factors: tuple[str, ...]
    secret_arguments: Mapping[str, str]
    listen: Mapping[str, FrozenValue]
    llm_d: Mapping[str, str]
    shared_memory: str
    mounts: Mapping[str, str]

    @property
    def port(self) -> int:
        """The port that exported servers listen on."""
        port = self.listen["port"]
        return port if isinstance(port, int) else 8000


@lru_cache(maxsize=1)
def deployment_facts() -> DeploymentFacts:
    """The facts, read once."""
    data = tomllib.loads((files("autotune.export") / "deployment.toml").read_text(encoding="utf-8"))
    container = data["container"]
    return DeploymentFacts(
        tuple(data["gpu_factors"]), data["secret_arguments"], data["listen"], data["llm_d"],
        container["shared_memory"], container["mounts"],
    )  # fmt: skip


def gpus_of(config: EngineConfig) -> int:
    """GPUs that one server of this configuration takes."""
    count = 1
    for name in deployment_facts().gpu_factors:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            count *= value
    return count


def release_of(version: str) -> str:
    """`0.32.0` from `0.32.0+cu129`, `v0.32.0` or `0.32.0rc1`; empty where it is no release number."""
    match = re.match(r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)", version)
    return match.group(1) if match else ""


def label_of(text: str) -> str:
    """A DNS label of at most 50 characters from any name, so that suffixes still fit into 63."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")
    return label if label and label[0].isalpha() else f"vllm-{label}".rstrip("-")
