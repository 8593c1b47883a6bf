"""What rules may ask about a launch configuration, beside its arguments and variables.

env.NAME              a variable
graph_limit           largest number of tokens that a CUDA graph is captured for
fp8_kv                the KV cache is of an 8-bit floating format
expandable_segments   PyTorch's allocator uses them
gpus_used             GPUs that the layout takes
gpus_given            GPUs that the file asks for, 0 where it does not say
gpus_visible          GPUs in CUDA_VISIBLE_DEVICES, 0 where it does not say
has_gpu               the file asks for a GPU, or does not say
image, image_floats   the container's image; it names no release
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files

from autotune.adopt.values import Adopted
from autotune.export.facts import gpus_of
from autotune.space.config import EngineConfig, FrozenValue

FACTS = ("graph_limit", "fp8_kv", "expandable_segments", "gpus_used", "gpus_given", "gpus_visible", "has_gpu", "image",
         "image_floats")  # fmt: skip
_DEFAULT_GRAPH_LIMIT = 512
"""vLLM captures up to twice max_num_seqs, and up to this at most (`VllmConfig`, 0.26 to 0.33)."""


def facts_of(adopted: Adopted) -> dict[str, FrozenValue]:
    """Every name that a rule may read; what is not given is missing, which counts as null."""
    config, env = adopted.config, dict(adopted.config.env)
    given = adopted.reading.gpus
    allocator = f"{env.get('PYTORCH_CUDA_ALLOC_CONF', '')},{env.get('PYTORCH_ALLOC_CONF', '')}"
    return {
        **dict(config.args),
        **{f"env.{name}": value for name, value in env.items()},
        "graph_limit": _graph_limit(config),
        "fp8_kv": str(config.get(_names()["kv_format"][0], "")).startswith("fp8"),
        "expandable_segments": "expandable_segments:true" in allocator.lower().replace(" ", ""),
        "gpus_used": gpus_of(config),
        "gpus_given": given,
        "gpus_visible": _visible(env.get("CUDA_VISIBLE_DEVICES", "")),
        "has_gpu": True,
        "image": adopted.reading.image,
        "image_floats": _floats(adopted.reading.image),
    }


@lru_cache(maxsize=1)
def _names() -> dict[str, tuple[str, ...]]:
    """Names of arguments by what they mean, from `facts.toml`."""
    data = tomllib.loads((files("autotune.lint") / "facts.toml").read_text(encoding="utf-8"))
    return {key: tuple(value) if isinstance(value, list) else (value,) for key, value in data.items()}


def _graph_limit(config: EngineConfig) -> int:
    names = _names()
    for name in names["graph_sizes"]:
        sizes = config.get(name)
        numbers = [size for size in sizes if isinstance(size, int)] if isinstance(sizes, tuple) else []
        if numbers:
            return max(numbers)
    for name in names["graph_limits"]:
        limit = config.get(name)
        if isinstance(limit, int):
            return limit
    seqs = config.get(names["sequences"][0])
    return min(2 * seqs, _DEFAULT_GRAPH_LIMIT) if isinstance(seqs, int) else _DEFAULT_GRAPH_LIMIT


def _visible(text: str) -> int:
    items = [item for item in text.split(",") if item.strip()]
    return len(items) if items and not text.startswith("$") else 0


def _floats(image: str) -> bool:
    """No tag, `latest`, `nightly`, and no digest."""
    if not image or "@sha256:" in image or "$" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return not tag or bool(re.match(r"(latest|nightly|main|dev|stable)", tag))
