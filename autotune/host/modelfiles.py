"""Are a model's files complete and readable? Reads headers, not weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from autotune.host.findings import Finding, error, note, ok, warning

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")
_OTHER_WEIGHTS = (".bin", ".gguf", ".pt", ".pth")
_HEADER_LIMIT = 200 << 20


def check_model_files(folder: Path, *, chat: bool, dummy: bool = False) -> tuple[Finding, ...]:
    """Findings about the model in `folder`.

    Args:
        folder: with config.json.
        chat: the study uses the chat route.
        dummy: weights are made up (`load_format: dummy`), so none need to be there.
    """
    findings = [*_config(folder), *_tokenizer(folder, chat)]
    if not dummy:
        findings += _weights(folder)
    return tuple(findings) or (ok("model_files", f"{folder}: complete"),)


def weight_bytes(folder: Path) -> int:
    """Size of the weight files."""
    return sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin", "*.gguf") for path in folder.glob(pattern))


def _config(folder: Path) -> Iterator[Finding]:
    path = folder / "config.json"
    try:
        value = json.loads(path.read_text())
    except OSError as problem:
        yield error("model_config", f"{path}: {problem.strerror}", "Fetch the model again, or correct its permissions.")
        return
    except ValueError as problem:
        yield error("model_config", f"{path} is no JSON: {problem}", "Fetch the file again.")
        return
    if not isinstance(value, dict) or not (value.get("architectures") or value.get("model_type")):
        yield error("model_config", f"{path} names no architecture", "This is no model that vLLM can serve.")


def _tokenizer(folder: Path, chat: bool) -> Iterator[Finding]:
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        yield error(
            "model_tokenizer",
            f"{folder} has no tokenizer",
            f"One of {', '.join(_TOKENIZERS)} must be beside config.json.",
        )
        return
    template = (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file()
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        template = template or bool(settings.get("chat_template"))
    except OSError:
        pass
    except ValueError as problem:
        yield error("model_tokenizer", f"tokenizer_config.json is no JSON: {problem}", "Fetch the file again.")
    if chat and not template:
        yield error(
            "chat_template",
            "the study uses the chat route and the model has no chat template",
            "Set `load.api: completions`, or give `chat_template` in `engine.args`.",
        )


def _weights(folder: Path) -> Iterator[Finding]:
    index = folder / "model.safetensors.index.json"
    shards = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        yield from _against_index(folder, index)
    elif not shards and not any(path.suffix in _OTHER_WEIGHTS for path in folder.iterdir()):
        yield error(
            "model_weights", f"{folder} has no weights", "Fetch them, or set `load_format: dummy` for a trial run."
        )
    for shard in shards:
        yield from _shard(shard)
    for leftover in (*folder.glob("*.incomplete"), *folder.glob("*.part")):
        yield warning("model_weights", f"{leftover.name} is an unfinished download", "Finish or remove it.")


def _against_index(folder: Path, index: Path) -> Iterator[Finding]:
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        yield error("model_weights", f"{index.name} cannot be read: {problem}", "Fetch the file again.")
        return
    missing = sorted(name for name in names if not (folder / str(name)).is_file())
    if missing:
        yield error(
            "model_weights",
            f"{len(missing)} of {len(names)} shards are missing, the first one is {missing[0]}",
            "Fetch the model again (`hf download`); the disk may have been full.",
        )
    extra = sorted(path.name for path in folder.glob("*.safetensors") if path.name not in names)
    if extra and not missing:
        yield note("model_weights", f"{len(extra)} files are not in the index ({extra[0]}); vLLM may load them twice")


def _shard(path: Path) -> Iterator[Finding]:
    """The length of a safetensors file follows from its header: 8 bytes, the header, and the last tensor's end."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > min(_HEADER_LIMIT, size):
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except OSError as problem:
        yield error("model_weights", f"{path.name}: {problem.strerror}", "Correct its permissions, or fetch it again.")
        return
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        text = path.name + (" is a Git LFS pointer" if _is_pointer(path) else f" is no safetensors file: {problem}")
        yield error("model_weights", text, "Fetch the file itself (`git lfs pull` or `hf download`).")
        return
    if size != expected:
        yield error(
            "model_weights",
            f"{path.name} has {size} bytes, its header says {expected}",
            "It was cut short: fetch it again.",
        )


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(40).startswith(b"version https://git-lfs")
