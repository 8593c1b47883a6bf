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
        nope_head_dim: width of a head's part without rotation (multi-head latent attention).
        value_head_dim: width of a value head there.
        sliding_window: width of the attention window of windowed layers.
        windowed_layers: layers that see only that window.
        tied: embedding and output head share weights.
        quantization: method of an already quantised checkpoint, empty for none.
        weight_bits: bits per quantised weight of such a checkpoint.
        quantization_block: edge of a block with one scale.
        dtype: `bfloat16`, `float16` or `float32`.
        multimodal: has an image, audio or video tower.
        vision_parameters: weights of the image or audio tower, as far as its configuration tells.
        state_elements: numbers of the fixed state that one request keeps in all layers without attention.
        longest: longest context that vLLM derives, with scaled rotary positions; 0 where the file does not say.
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
    nope_head_dim: int = 0
    value_head_dim: int = 0
    sliding_window: int = 0
    windowed_layers: int = 0
    tied: bool = False
    quantization: str = ""
    weight_bits: int = 16
    quantization_block: int = 0
    dtype: str = "bfloat16"
    multimodal: bool = False
    vision_parameters: int = 0
    state_elements: int = 0
    longest: int = 0
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
    if "quantization_config" not in config:
        config |= _sidecar_quantization(folder)
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return facts_of(config, weight_bytes=sum(sizes))


_SIDECARS = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Where older GPTQ and AWQ and NVIDIA's checkpoints keep what others write into `config.json`."""


def _sidecar_quantization(folder: Path) -> dict[str, object]:
    for name in _SIDECARS:
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            inner = found.get("quantization")
            method = "modelopt" if name.startswith("hf_") else "awq" if "zero_point" in found else "gptq"
            return {"quantization_config": {"quant_method": method, **(inner if isinstance(inner, dict) else found)}}
    return {}


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
    kinds = get.strings("layer_types", "layers_block_type")
    attention_layers = _attention_layers(get, kinds, layers, text.get("hybrid_override_pattern"))
    window = get.integer("sliding_window") if text.get("use_sliding_window", True) else 0
    quantization, bits, block = _quantization(config.get("quantization_config") or text.get("quantization_config"))
    architectures = config.get("architectures")
    return ModelFacts(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        layers=layers,
        attention_layers=attention_layers,
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
        dense_layers=_dense_layers(get) if experts else 0,
        kv_lora_rank=get.integer("kv_lora_rank"),
        rope_head_dim=get.integer("qk_rope_head_dim"),
        q_lora_rank=get.integer("q_lora_rank"),
        nope_head_dim=get.integer("qk_nope_head_dim"),
        value_head_dim=get.integer("v_head_dim"),
        sliding_window=window,
        windowed_layers=sum("sliding" in kind for kind in kinds) if kinds else (layers if window else 0),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        quantization=quantization,
        weight_bits=bits,
        quantization_block=block,
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
        multimodal=any(key in config for key in ("vision_config", "audio_config", "visual", "vision_tower")),
        vision_parameters=_tower_parameters(config),
        state_elements=_state_elements(get, layers - attention_layers),
        longest=_longest(get, text),
        weight_bytes=weight_bytes,
    )  # fmt: skip


def _dense_layers(get: _Reader) -> int:
    return get.integer("first_k_dense_replace", default=len(get.integers("mlp_only_layers")))


def _attention_layers(get: _Reader, kinds: list[str], layers: int, pattern: object) -> int:
    """Layers with a KV cache; the others keep a fixed state. Each family says it in its own way."""
    if kinds:
        return sum("attention" in kind and "linear" not in kind for kind in kinds)
    if isinstance(pattern, str) and pattern:  # Nemotron-H: M for Mamba, - for an MLP, * for attention
        return pattern.count("*")
    every = get.integer("full_attention_interval", "attn_layer_period")
    return layers // every if every > 1 else layers


def _tower_parameters(config: Mapping[str, object]) -> int:
    """Attention and MLP of the towers' layers; 0 where the file does not describe them."""
    total = 0
    for name in ("vision_config", "audio_config"):
        part = config.get(name)
        if isinstance(part, Mapping):
            get = _Reader(part)
            width = get.integer("hidden_size", "embed_dim", "d_model")
            depth = get.integer("num_hidden_layers", "depth", "encoder_layers")
            inner = get.integer("intermediate_size", "encoder_ffn_dim", default=4 * width)
            total += depth * (4 * width * width + 2 * width * inner)
    return total


def _state_elements(get: _Reader, layers: int) -> int:
    """State of one request in `layers` recurrent layers: gated delta networks and Mamba 2; 0 for other kinds."""
    if layers <= 0:
        return 0
    value_heads = get.integer("linear_num_value_heads")
    if value_heads:
        keys = get.integer("linear_num_key_heads") * get.integer("linear_key_head_dim")
        values = value_heads * get.integer("linear_value_head_dim")
        window = max(get.integer("linear_conv_kernel_dim") - 1, 0)
        return layers * (values * get.integer("linear_key_head_dim") + window * (2 * keys + values))
    inner = get.integer("mamba_n_heads", "mamba_num_heads") * get.integer("mamba_d_head", "mamba_head_dim")
    return layers * inner * get.integer("mamba_d_state", "ssm_state_size")


_STRETCHING = ("linear", "dynamic", "yarn", "deepseek_yarn", "ntk")


def _longest(get: _Reader, text: Mapping[str, object]) -> int:
    """The context that vLLM derives, generously: whatever might stretch it is taken to stretch it."""
    plain = get.integer("max_position_embeddings", "seq_length", "n_positions")
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if not plain or not isinstance(rope, Mapping):
        return plain
    factor, kind = rope.get("factor"), str(rope.get("rope_type") or rope.get("type") or "")
    if not isinstance(factor, int | float) or kind not in _STRETCHING:
        return plain
    original = rope.get("original_max_position_embeddings")
    return max(plain, int((original if isinstance(original, int) else plain) * factor))


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
