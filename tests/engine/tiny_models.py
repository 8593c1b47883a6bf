"""Models without weights for the real vLLM: a configuration and a tokenizer, to be served with `load_format: dummy`.

The shipped CPU model has nine heads, which no two ranks can share; these have eight. One of them has experts, one reads
images.
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

_TILE = 128
_IMAGE_TOKENS = (
    "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)  # fmt: skip
_IMAGE_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_llama(engine: CpuEngine, folder: Path) -> Path:
    """A dense model whose heads can be shared by two ranks."""
    return _write(engine, folder, _LLAMA)


def tiny_moe(engine: CpuEngine, folder: Path) -> Path:
    """A mixture of eight experts."""
    return _write(engine, folder, _MOE)


def tiny_vision(engine: CpuEngine, folder: Path) -> Path:
    """An Idefics3 with a tower of two layers: one of the few that need no torchvision, and priced by an image's size.

    An image is cut into tiles of 128 x 128 pixels of 16 tokens each, beside a small picture of the whole.
    """
    _write(engine, folder, {})
    text = {**_COMMON, **_LLAMA, "vocab_size": 49280, "pad_token_id": 2}
    tower = {"model_type": "idefics3_vision", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
             "num_hidden_layers": 2, "image_size": _TILE, "patch_size": 16}  # fmt: skip
    config = {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "text_config": text,
              "vision_config": tower, "image_token_id": 49152, "scale_factor": 2, "tie_word_embeddings": True,
              "pad_token_id": 2, "torch_dtype": "bfloat16"}  # fmt: skip
    images = {"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": True, "do_resize": True,
              "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True,
              "do_pad": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
              "max_image_size": {"longest_edge": _TILE}, "size": {"longest_edge": 3 * _TILE}}  # fmt: skip
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for number, name in enumerate(_IMAGE_TOKENS):
        added = {"id": 49152 + number, "content": name, "special": True, "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False}  # fmt: skip
        tokenizer["added_tokens"].append(added)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": _IMAGE_TEMPLATE}
    for name, body in (
        ("config", config), ("preprocessor_config", images), ("tokenizer", tokenizer), ("tokenizer_config", settings),
        ("processor_config", {"processor_class": "Idefics3Processor", "image_seq_len": 16}),
    ):  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(body))
    return folder


def _write(engine: CpuEngine, folder: Path, own: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(engine.model / name, folder / name)
    (folder / "config.json").write_text(json.dumps({**_COMMON, **own}))
    return folder
