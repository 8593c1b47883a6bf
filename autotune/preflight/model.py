"""What a model is, read from its Hugging Face `config.json`: what memory, legality and the search depend on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import SpecError
from autotune.space.config import FrozenValue


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A decoder's shape. Counts are of elements, not bytes; 0 means that the model has none of it.

    Attributes:
        architecture: class name, such as `Glm4ForCausalLM`.
        layers: transformer blocks.
        attention_layers: blocks with a KV cache that grows with the text (fewer than `layers` in hybrids).
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads (equal to `heads` without grouping).
        head_dim: width of a head.
        intermediate: width of the dense MLP.
        vocabulary: size of the vocabulary.
        max_positions: longest context of the checkpoint.
        experts: routed experts per MoE layer.
        experts_per_token: experts that a token visits.
        moe_intermediate: width of one expert.
        shared_intermediate: width of the shared experts together.
        dense_layers: layers of a MoE model with a dense MLP.
        kv_lora_rank: rank of compressed KV (multi-head latent attention).
        rope_head_dim: width of the rotary part beside it.
        q_lora_rank: rank of compressed queries.
        sliding_window: width of the attention window of windowed layers.
        windowed_layers: layers that see only that window.
        tied: embedding and output head share weights.
        quantization: method of an already quantised checkpoint, empty for none.
        weight_bits: bits per quantised weight of such a checkpoint.
        quantization_block: edge of a block with one scale.
        dtype: `bfloat16`, `float16` or `float32`.
        multimodal: has an image, audio or video tower.
        weight_bytes: size of the weight files where they are local, else 0.
    """

    architecture: str
    layers: int
    attention_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    q_lora_rank: int = 0
    sliding_window: int = 0
    windowed_layers: int = 0
    tied: bool = False
    quantization: str = ""
    weight_bits: int = 16
    quantization_block: int = 0
    dtype: str = "bfloat16"
    multimodal: bool = False
    weight_bytes: int = 0

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def is_hybrid(self) -> bool:
        return self.attention_layers < self.layers

    @property
    def kind(self) -> str:
        """`moe` or `dense`."""
        return "moe" if self.is_moe else "dense"

    @property
    def space_facts(self) -> dict[str, FrozenValue]:
        """The facts by the names that search spaces use after `model.`."""
        return {
            "architecture": self.architecture,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": self.layers,
            "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "hidden_size": self.hidden,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "moe_intermediate_size": self.moe_intermediate,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_positions,
            "max_model_len": self.max_positions,
            "quantization": self.quantization or None,
            "dtype": self.dtype,
            "weight_bytes": self.weight_bytes or None,
            "is_moe": self.is_moe,
            "is_mla": self.is_mla,
            "is_hybrid": self.is_hybrid,
        }


def read_model(model: str | Path) -> ModelFacts | None:
    """Facts of a local model folder, or of one in the Hugging Face cache; None where no `config.json` is at hand.

    Raises:
        SpecError: the folder's `config.json` cannot be read.
    """
    folder = _folder(str(model))
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"config.json cannot be read: {error}", file=folder / "config.json", key="model") from error
    if not isinstance(config, dict):
        raise SpecError("config.json is no JSON object", file=folder / "config.json", key="model")
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return facts_of(config, weight_bytes=sum(sizes))


def facts_of(config: Mapping[str, object], *, weight_bytes: int = 0) -> ModelFacts:
    """Facts of a parsed `config.json`. The text part of a multimodal model counts."""
    inner = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    text: Mapping[str, object] = inner if isinstance(inner, Mapping) else config
    get = _Reader(text, config)
    heads = get.integer("num_attention_heads", "n_head", default=1)
    hidden = get.integer("hidden_size", "n_embd", "d_model", default=1)
    layers = get.integer("num_hidden_layers", "n_layer", "num_layers", default=1)
    experts = get.integer("num_experts", "n_routed_experts", "num_local_experts")
    moe_width = get.integer("moe_intermediate_size", default=get.integer("intermediate_size") if experts else 0)
    shared = moe_width * get.integer("n_shared_experts")
    dense_layers = get.integer("first_k_dense_replace", default=len(get.integers("mlp_only_layers")))
    kinds = get.strings("layer_types", "layers_block_type")
    window = get.integer("sliding_window") if text.get("use_sliding_window", True) else 0
    quantization, bits, block = _quantization(config.get("quantization_config") or text.get("quantization_config"))
    architectures = config.get("architectures")
    return ModelFacts(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        layers=layers,
        attention_layers=sum("attention" in kind for kind in kinds) if kinds else layers,
        hidden=hidden,
        heads=heads,
        kv_heads=get.integer("num_key_value_heads", "multi_query_group_num", default=heads),
        head_dim=get.integer("head_dim", default=hidden // max(heads, 1)),
        intermediate=get.integer("intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden),
        vocabulary=get.integer("vocab_size", "padded_vocab_size", default=1),
        max_positions=get.integer("max_position_embeddings", "seq_length", "n_positions", default=2048),
        experts=experts,
        experts_per_token=get.integer("num_experts_per_tok", "moe_topk", "num_experts_per_token"),
        moe_intermediate=moe_width,
        shared_intermediate=get.integer("shared_expert_intermediate_size", default=shared),
        dense_layers=dense_layers if experts else 0,
        kv_lora_rank=get.integer("kv_lora_rank"),
        rope_head_dim=get.integer("qk_rope_head_dim"),
        q_lora_rank=get.integer("q_lora_rank"),
        sliding_window=window,
        windowed_layers=sum("sliding" in kind for kind in kinds) if kinds else (layers if window else 0),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        quantization=quantization,
        weight_bits=bits,
        quantization_block=block,
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
        multimodal=any(key in config for key in ("vision_config", "audio_config", "visual", "vision_tower")),
        weight_bytes=weight_bytes,
    )  # fmt: skip


class _Reader:
    """Reads one of several spellings of a key, from the text part first."""

    def __init__(self, *sources: Mapping[str, object]) -> None:
        self._sources = sources

    def integer(self, *names: str, default: int = 0) -> int:
        for source in self._sources:
            for name in names:
                value = source.get(name)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return default

    def strings(self, *names: str) -> list[str]:
        return [str(item) for item in self._list(names)]

    def integers(self, *names: str) -> list[int]:
        return [item for item in self._list(names) if isinstance(item, int)]

    def _list(self, names: tuple[str, ...]) -> list[object]:
        for source in self._sources:
            for name in names:
                value = source.get(name)
                if isinstance(value, list):
                    return value
        return []


def _quantization(config: object) -> tuple[str, int, int]:
    """Method, bits per weight and block edge of a `quantization_config`."""
    if not isinstance(config, Mapping):
        return "", 16, 0
    method = str(config.get("quant_method") or "")
    block = config.get("weight_block_size")
    edge = int(block[-1]) if isinstance(block, list) and block else 0
    bits = config.get("bits") or config.get("num_bits")
    if isinstance(bits, int):
        return method, bits, edge
    if "fp8" in method or "fp8" in str(config.get("fmt", "")) or "float8" in str(config):
        return method, 8, edge
    return method, 4 if method in ("awq", "gptq", "mxfp4", "modelopt_fp4") else 8, edge


def _folder(model: str) -> Path | None:
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return path
    if "/" not in model or model.startswith((".", "/")):
        return None
    cache = Path("~/.cache/huggingface/hub").expanduser() / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(cache.glob("*/config.json"), key=lambda item: item.stat().st_mtime)
    return found[-1].parent if found else None
