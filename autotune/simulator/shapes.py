"""What the simulator needs to know of a model: its shape, from ``config.json`` or from ``data/models.toml``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from .tables import table


class UnknownModel(Exception):
    """No such directory and no built-in shape; ``str()`` is what vLLM prints for it."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer. Sizes are counts of elements, not bytes."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_len: int
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    quantization: str | None = None
    quantization_block: int = 0
    """Edge of the blocks that share one scale in an FP8 checkpoint; 0 when not blockwise."""

    @property
    def attention_parameters(self) -> int:
        """Weights of the query, key, value and output projections of all layers."""
        query = self.hidden * self.heads * self.head_dim
        return self.layers * (2 * query + 2 * self.hidden * self.kv_heads * self.head_dim)

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert over all layers (gate, up and down projection)."""
        return 3 * self.layers * self.hidden * self.moe_intermediate

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of the MLPs of a dense model; 0 for a mixture of experts."""
        return 0 if self.experts else 3 * self.layers * self.hidden * self.intermediate

    @property
    def linear_parameters(self) -> int:
        """All weights of the layers' linear modules: what weight quantisation shrinks."""
        return self.attention_parameters + self.dense_mlp_parameters + self.experts * self.expert_parameters

    @property
    def active_linear_parameters(self) -> int:
        """Weights that one token passes through in the layers."""
        return self.attention_parameters + self.dense_mlp_parameters + self.experts_per_token * self.expert_parameters

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection to the vocabulary."""
        return self.hidden * self.vocab

    @property
    def unquantized_parameters(self) -> int:
        """Embedding, output head and router: kept in the model's own number format."""
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return embeddings + self.layers * self.hidden * (2 + self.experts)

    @property
    def widest_mlp(self) -> int:
        """Elements of the largest activation of one token inside a layer."""
        if self.experts:
            return max(self.moe_intermediate * self.experts_per_token, self.hidden)
        return self.intermediate


def _number(raw: Mapping[str, object], *keys: str, default: int = 0) -> int:
    for key in keys:
        value = raw.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return default


def _block_edge(quantized: object) -> int:
    block = quantized.get("weight_block_size") if isinstance(quantized, dict) else None
    return int(block[0]) if isinstance(block, list) and block else 0


def _from_config(name: str, raw: Mapping[str, object]) -> ModelShape:
    """Read a Hugging Face config; the spellings are those of Llama, Qwen, GLM, Mixtral and DeepSeek."""
    text = raw.get("text_config")
    inner = text if isinstance(text, dict) else raw
    architectures = raw.get("architectures")
    heads = _number(inner, "num_attention_heads", default=1)
    hidden = _number(inner, "hidden_size", default=1)
    experts = _number(inner, "num_experts", "num_local_experts", "n_routed_experts")
    quantized = inner.get("quantization_config") or raw.get("quantization_config")
    return ModelShape(
        name=name,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "unknown",
        layers=_number(inner, "num_hidden_layers", "num_layers", default=1),
        hidden=hidden,
        heads=heads,
        kv_heads=_number(inner, "num_key_value_heads", "multi_query_group_num", default=heads),
        head_dim=_number(inner, "head_dim", default=hidden // heads),
        intermediate=_number(inner, "intermediate_size", "ffn_hidden_size", default=4 * hidden),
        vocab=_number(inner, "vocab_size", "padded_vocab_size", default=32000),
        max_len=_number(inner, "max_position_embeddings", "seq_length", default=2048),
        tied_embeddings=bool(inner.get("tie_word_embeddings", False)),
        experts=experts,
        experts_per_token=_number(inner, "num_experts_per_tok", default=2) if experts else 0,
        moe_intermediate=_number(inner, "moe_intermediate_size", "intermediate_size") if experts else 0,
        quantization=str(quantized.get("quant_method")) if isinstance(quantized, dict) else None,
        quantization_block=_block_edge(quantized),
    )


def _simplified(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def known_models() -> tuple[str, ...]:
    """The public names that need no files."""
    return tuple(sorted(table("models")))


def load_shape(model: str) -> ModelShape:
    """The shape of ``model``: a directory with a config.json, or a known public name.

    :raises UnknownModel: neither; the text is what vLLM prints for a path that does not exist.
    """
    config = Path(model) / "config.json"
    if config.is_file():
        raw = json.loads(config.read_text(encoding="utf-8"))
        return _from_config(Path(model).name, raw)
    wanted = _simplified(model.rstrip("/").rsplit("/", 1)[-1])
    names = {field.name for field in fields(ModelShape)}
    for name, values in sorted(table("models").items(), key=lambda item: -len(item[0])):
        if wanted.startswith(_simplified(name)):
            known = {key: value for key, value in values.items() if key in names}
            return ModelShape(name=name, **known)
    raise UnknownModel(
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        f"'{model}'. Use `repo_type` argument if needed."
    )
