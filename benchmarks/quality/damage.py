"""Make a damaged copy of a Hugging Face model folder. Runs in the engine's own environment (torch, safetensors).

    python damage.py MODEL TARGET KIND [SIZE [SEED]]

Kinds: ``noise`` (Gaussian, SIZE times the standard deviation, on the MLP of one layer in the middle, drawn from SEED),
``int4`` and ``int8`` (rounded to nearest, symmetric, groups of SIZE columns), ``fp8`` (e4m3, one scale per output
row), ``rope`` (SIZE is the wrong base), ``template`` (another chat template), ``none`` (a plain copy).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WRONG_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
FP8_MAX = 448.0


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def rounded(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Symmetric rounding to nearest with one scale for `group` columns of a row."""
    rows, columns = weight.shape
    size = group if columns % group == 0 else columns
    cells = weight.float().reshape(rows, columns // size, size)
    top = 2 ** (bits - 1) - 1
    scale = cells.abs().amax(dim=2, keepdim=True).clamp_min(1e-12) / top
    return ((cells / scale).round().clamp(-top - 1, top) * scale).reshape(rows, columns).to(weight.dtype)


def fp8(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / FP8_MAX
    return ((weight.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)


def with_noise(weight: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(weight.shape, generator=generator) * weight.float().std() * size
    return (weight.float() + noise).to(weight.dtype)


def damaged(weights: dict[str, torch.Tensor], kind: str, size: float, seed: int) -> dict[str, torch.Tensor]:
    layers = 1 + max(int(name.split(".layers.")[1].split(".")[0]) for name in weights if ".layers." in name)
    hit = f".layers.{layers // 2}.mlp."
    changed = dict(weights)
    for name, weight in weights.items():
        if not is_linear(name):
            continue
        if kind == "noise" and hit in name:
            changed[name] = with_noise(weight, size, seed)
        elif kind in ("int4", "int8"):
            changed[name] = rounded(weight, int(kind[3:]), int(size))
        elif kind == "fp8":
            changed[name] = fp8(weight)
    return changed


def main(model: Path, target: Path, kind: str, size: float, seed: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, target / path.name)
    for path in model.glob("*.safetensors"):
        if kind in ("noise", "int4", "int8", "fp8"):
            save_file(damaged(load_file(path), kind, size, seed), target / path.name, {"format": "pt"})
        else:
            (target / path.name).unlink(missing_ok=True)
            (target / path.name).symlink_to(path.resolve())
    if kind == "rope":
        config = json.loads((target / "config.json").read_text("utf-8"))
        config["rope_theta"] = size
        if isinstance(config.get("rope_parameters"), dict):
            config["rope_parameters"]["rope_theta"] = size
        (target / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    if kind == "template":
        found = json.loads((target / "tokenizer_config.json").read_text("utf-8"))
        found["chat_template"] = WRONG_TEMPLATE
        (target / "tokenizer_config.json").write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    source, destination, name, *rest = sys.argv[1:]
    main(Path(source), Path(destination), name, float(rest[0]) if rest else 32.0, int(rest[1]) if len(rest) > 1 else 17)
