"""Models without weights for the real vLLM: a configuration and a tokenizer, to be served with `load_format: dummy`.

The shipped CPU model has nine heads, which no two ranks can share; these have eight. One of them has experts.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from autotune.engine.cpu_setup import CpuEngine

_COMMON = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 512, "mlp_bias": False}
_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def tiny_llama(engine: CpuEngine, folder: Path) -> Path:
    """A dense model whose heads can be shared by two ranks."""
    return _write(engine, folder, _LLAMA)


def tiny_moe(engine: CpuEngine, folder: Path) -> Path:
    """A mixture of eight experts."""
    return _write(engine, folder, _MOE)


def _write(engine: CpuEngine, folder: Path, own: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(engine.model / name, folder / name)
    (folder / "config.json").write_text(json.dumps({**_COMMON, **own}))
    return folder
