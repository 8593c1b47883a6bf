"""Rules about the images that a load sends: whether the model and the configuration take them."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.preflight.model import ModelFacts
from autotune.preflight.settings import modality_limits
from autotune.space.config import EngineConfig

TEXT_ONLY = frozenset(
    f"{name}ForCausalLM" for name in (
        "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2", "Phi3",
        "DeepseekV2", "DeepseekV3", "GptOss", "Glm4", "Glm4Moe", "Olmo2", "Olmo3", "Granite", "SmolLM3",
    )
)  # fmt: skip
"""Architectures without an image tower. Of others, `config.json` does not always tell plainly that they have one."""


def images_model(images: int, facts: ModelFacts | None) -> Mapping[str, str] | None:
    """Values for the refusal of a model without an image tower."""
    if not images or facts is None or facts.multimodal or facts.architecture not in TEXT_ONLY:
        return None
    return {"architecture": facts.architecture}


def images_limit(images: int, config: EngineConfig) -> Mapping[str, int] | None:
    """Values for the refusal of a configuration that takes fewer images in a prompt than the load sends."""
    limit = 0 if config.get("language_model_only") is True else modality_limits(config).get("image")
    return {"images": images, "limit": limit} if limit is not None and images > limit else None
