"""The prepared engine and model, read by the libraries that the engine itself uses."""

from __future__ import annotations

import json
import subprocess

import pytest

from autotune.engine.cpu_setup import CpuEngine

pytestmark = pytest.mark.real_engine

# As SmolLM2's tokenizer splits: each digit is one token (32 to 41), and so is each special token (1 is <|im_start|>).
TEXT = "In 2026 it costs 1,234.5 <|im_start|>user\n two  spaces"
IDS = [788, 216, 34, 32, 34, 38, 357, 3499, 216, 33, 28, 34, 35, 36, 30, 37, 216, 1, 4093, 198, 827, 216, 5600]

SCRIPT = """
import importlib.metadata, json, sys
from safetensors import safe_open
from tokenizers import Tokenizer
folder, text = sys.argv[1:]
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
ids = tokenizer.encode(text).ids
with safe_open(folder + "/model.safetensors", "numpy") as weights:
    shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]
print(json.dumps({
    "vllm": importlib.metadata.version("vllm"),
    "ids": ids,
    "back": tokenizer.decode(ids, skip_special_tokens=False),
    "parameters": sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes),
    "tensors": len(shapes),
}))
"""


def test_the_converted_model_is_whole_and_its_tokenizer_splits_digits_and_special_tokens(cpu_vllm: CpuEngine) -> None:
    argv = [str(cpu_vllm.python), "-c", SCRIPT, str(cpu_vllm.model), TEXT]
    seen = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert seen["vllm"].startswith(cpu_vllm.version)
    assert seen["ids"] == IDS
    assert seen["back"] == TEXT
    assert seen["tensors"] == 30 * 9 + 2
    assert seen["parameters"] == 134_515_008
