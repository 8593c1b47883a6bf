"""Recorded traces as plans: arrival times, lengths, and shared prefixes that are really shared."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np

from autotune.errors import SpecError
from autotune.load.turns import Turn
from autotune.spec.study import TraceSpec

MOONCAKE_BLOCK = 512
CHARACTERS_PER_TOKEN = 4.0
"""For answers that are only known as text: the usual rate of English text."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a trace file; `at` in seconds (NaN: none)."""

    at: float
    turn: Turn


def read_trace(spec: TraceSpec, seed: int) -> list[Turn]:
    """The requests of a trace in the order of their times; times begin at 0 and are divided by `spec.speed`.

    Times of low resolution (Mooncake's conversation trace moves in steps of 3 s, BurstGPT in steps of 1 s) are spread
    evenly at random up to the next different time, by `seed`: a burst at the step would be an artefact.

    Raises:
        SpecError: the file cannot be read; says where and what is legal.
    """
    path = Path(spec.file)
    reader = READERS[spec.format]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read the trace: {error.strerror}", file=path, key="load.trace.file") from None
    except UnicodeDecodeError:
        raise SpecError("the trace is not text", file=path, key="load.trace.file") from None
    rows = list(islice(reader(path, text), spec.limit))
    if not rows:
        raise SpecError("the trace holds no requests", file=path, key="load.trace.file")
    if rows[0].at != rows[0].at:
        return [row.turn for row in rows]
    rows.sort(key=lambda row: row.at)
    times = spread_ties(np.array([row.at for row in rows]), np.random.default_rng([seed, 7]))
    times = (times - times[0]) / spec.speed
    return [replace(row.turn, due=float(at)) for row, at in zip(rows, times, strict=True)]


def spread_ties(times: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Equal times (ascending input) spread at random up to the next different one; the first of each stays."""
    distinct, first, counts = np.unique(times, return_index=True, return_counts=True)
    if len(distinct) == len(times):
        return times
    steps = np.diff(distinct)
    steps = np.append(steps, np.median(steps) if len(steps) else 1.0)
    spread = times.astype(np.float64).copy()
    for start, count, step in zip(first, counts, steps, strict=True):
        if count > 1:
            spread[start + 1 : start + count] += np.sort(generator.random(count - 1)) * step
    return spread


def _whole(value: object, *, path: Path, line: int, key: str, least: int = 1) -> int:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = least - 1
    if number < least:
        raise SpecError(f"{value!r} is no number of tokens", file=path, line=line, key=key, hint=f"at least {least}")
    return int(number)


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    for line, entry in enumerate(text.splitlines(), 1):
        if not entry.strip():
            continue
        try:
            item = json.loads(entry)
        except ValueError:
            item = None
        if not isinstance(item, dict):
            raise SpecError("the line is no JSON object", file=path, line=line)
        yield line, item


def _number(item: dict[str, object], key: str, path: Path, line: int) -> float:
    value = item.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise SpecError("is missing or no number", file=path, line=line, key=key)
    return float(value)


def _blocks(item: dict[str, object], path: Path, line: int) -> tuple[int, ...]:
    found = item.get("hash_ids", [])
    if not isinstance(found, list) or not all(isinstance(entry, int) and entry >= 0 for entry in found):
        raise SpecError("must be a list of whole numbers", file=path, line=line, key="hash_ids")
    return tuple(found)


def _mooncake(path: Path, text: str) -> Iterator[_Row]:
    """Milliseconds, lengths, and one hash id for every block of 512 tokens; an id names the block and its prefix."""
    for line, item in _json_lines(path, text):
        tokens = _whole(item.get("input_length"), path=path, line=line, key="input_length")
        answer = _whole(item.get("output_length"), path=path, line=line, key="output_length")
        blocks = _blocks(item, path, line)
        if len(blocks) * MOONCAKE_BLOCK < tokens:
            raise SpecError(
                f"{len(blocks)} blocks of {MOONCAKE_BLOCK} tokens are too few for {tokens}",
                file=path, line=line, key="hash_ids",
            )  # fmt: skip
        at = _number(item, "timestamp", path, line) / 1000.0
        yield _Row(at, Turn(tokens, answer, blocks=blocks, block_tokens=MOONCAKE_BLOCK))


def _jsonl(path: Path, text: str) -> Iterator[_Row]:
    """Seconds in `timestamp`, `input_tokens`, `output_tokens`; optional `hash_ids` with `block_tokens` (512)."""
    for line, item in _json_lines(path, text):
        tokens = _whole(item.get("input_tokens"), path=path, line=line, key="input_tokens")
        answer = _whole(item.get("output_tokens"), path=path, line=line, key="output_tokens")
        size = _whole(item.get("block_tokens", MOONCAKE_BLOCK), path=path, line=line, key="block_tokens")
        turn = Turn(tokens, answer, blocks=_blocks(item, path, line), block_tokens=size)
        yield _Row(_number(item, "timestamp", path, line), turn)


def _table(path: Path, text: str, columns: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(text.splitlines())
    names = reader.fieldnames or []
    missing = [name for name in columns if name not in names]
    if missing:
        raise SpecError(f"has no column {missing[0]!r}", file=path, line=1, hint=f"found: {', '.join(names)}")
    yield from enumerate(reader, 2)


def _azure(path: Path, text: str) -> Iterator[_Row]:
    """UTC times with seven digits of a second, ContextTokens, GeneratedTokens. Nothing is known about prefixes."""
    for line, row in _table(path, text, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        stamp, _, fraction = (row["TIMESTAMP"] or "").strip().partition("+")[0].partition(".")
        try:
            at = datetime.fromisoformat(stamp + "+00:00").timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
        except ValueError:
            raise SpecError(
                f"{row['TIMESTAMP']!r} is no time", file=path, line=line, hint="2023-11-16 18:15:46.6805900"
            ) from None
        tokens = _whole(row["ContextTokens"], path=path, line=line, key="ContextTokens")
        yield _Row(at, Turn(tokens, _whole(row["GeneratedTokens"], path=path, line=line, key="GeneratedTokens")))


def _burstgpt(path: Path, text: str) -> Iterator[_Row]:
    """Whole seconds, request and response tokens; rows with 0 response tokens failed and are left out."""
    for line, row in _table(path, text, ("Timestamp", "Request tokens", "Response tokens")):
        tokens = _whole(row["Request tokens"], path=path, line=line, key="Request tokens", least=0)
        answer = _whole(row["Response tokens"], path=path, line=line, key="Response tokens", least=0)
        try:
            at = float(row["Timestamp"] or "")
        except ValueError:
            raise SpecError(f"{row['Timestamp']!r} is no time", file=path, line=line, hint="seconds") from None
        if answer > 0 and tokens > 0:
            yield _Row(at, Turn(tokens, answer))


def _sharegpt(path: Path, text: str) -> Iterator[_Row]:
    """Conversations as [{"conversations": [{"from": "human", "value": ...}, ...]}]: the first question and answer.

    There are no times, so they are sent in closed loop, as they stand; the answer's length is estimated from its text.
    """
    try:
        items = json.loads(text)
    except ValueError as error:
        raise SpecError(f"the file is no JSON: {error}", file=path) from None
    if not isinstance(items, list):
        raise SpecError("the file must hold a list of conversations", file=path)
    for number, item in enumerate(items):
        turns = item.get("conversations") if isinstance(item, dict) else None
        if not isinstance(turns, list):
            raise SpecError("has no list 'conversations'", file=path, key=f"[{number}]")
        texts = [str(turn.get("value", "")) for turn in turns if isinstance(turn, dict)]
        if len(texts) >= 2 and texts[0].strip() and texts[1].strip():
            tokens = max(1, round(len(texts[0]) / CHARACTERS_PER_TOKEN))
            answer = max(1, round(len(texts[1]) / CHARACTERS_PER_TOKEN))
            yield _Row(float("nan"), Turn(tokens, answer, text=texts[0]))


READERS = {"mooncake": _mooncake, "jsonl": _jsonl, "azure": _azure, "burstgpt": _burstgpt, "sharegpt": _sharegpt}
"""Every trace format by its name in the study file."""
