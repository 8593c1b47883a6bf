"""What the client processes saw, as arrays in the target's seconds since the load began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.load.ends import RawResult
from autotune.load.wire import FAILED, OK, RECORD_FIELDS

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

_COLUMN = {name: number for number, name in enumerate(RECORD_FIELDS)}
_TIMES = [_COLUMN[name] for name in ("due", "sent", "first", "visible", "choice", "last", "end")]


@dataclass(frozen=True)
class Records:
    """All requests of one level, warm-up included.

    Attributes:
        rows: one row a request, columns as `wire.RECORD_FIELDS`, times in seconds since the start of the load.
        chunks: arrival times of all token chunks, request after request.
        offsets: request k has the chunks `offsets[k]` to `offsets[k + 1]`.
        lags: delays of the client loop's heartbeat in (real) seconds.
        counts: sums of the client processes' counters (`starved`, `overdue`, `retried`, ...).
        errors: error texts and how often each was seen.
        cpu_share: largest share of one core that a client process used.
        stopped: end of the load.
    """

    rows: Floats
    chunks: Floats
    offsets: Ints
    lags: Floats
    counts: dict[str, int]
    errors: dict[str, int]
    cpu_share: float
    stopped: float

    def column(self, name: str) -> Floats:
        """One column by its name in `wire.RECORD_FIELDS`."""
        return self.rows[:, _COLUMN[name]]

    @property
    def ok(self) -> Flags:
        return np.equal(self.column("status"), OK)

    @property
    def failed(self) -> Flags:
        return np.equal(self.column("status"), FAILED)

    @property
    def reference(self) -> Floats:
        """Where latencies count from: the planned time in open loop, else the time of sending."""
        due = self.column("due")
        return np.where(np.isnan(due), self.column("sent"), due)

    @property
    def output_tokens(self) -> Floats:
        """Answer length: the server's count, else the number of chunks."""
        usage = self.column("completion_tokens")
        return np.where(np.isnan(usage), self.column("events"), usage)

    @property
    def gaps(self) -> Flags:
        """Between which neighbours in `chunks` the time is a gap that was seen: both of one request that did not fail,
        each read when it came. One less than there are chunks."""
        owners = self.owners
        seen = (self.column("gaps_seen") != 0) & ~self.failed
        found: Flags = (owners[1:] == owners[:-1]) & seen[owners[1:]]
        return found

    @property
    def owners(self) -> Ints:
        """Row of each chunk."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.offsets))

    def chunk_weights(self) -> Floats:
        """Tokens that each chunk stands for: the server's count spread evenly over the request's chunks."""
        return self._tokens_a_chunk[self.owners]

    @property
    def _tokens_a_chunk(self) -> Floats:
        """By request; one whose end was not seen is taken for the mean of the others."""
        events = self.column("events")
        usage = self.column("completion_tokens")
        known = ~np.isnan(usage) & (events > 0)
        mean = float(usage[known].sum() / events[known].sum()) if known.any() else 1.0
        return np.where(known, usage / np.maximum(events, 1), mean)

    def unplaced(self, moment: float) -> float:
        """Tokens of which chunks do not tell on which side of `moment` they were written.

        A server that falls behind puts several tokens into one chunk, and does so in bursts: of a request that runs at
        that moment, only one token a chunk is known to be where the chunk is.
        """
        filled = np.flatnonzero(np.diff(self.offsets) > 0)
        began = self.chunks[self.offsets[filled]] < moment
        open_ended = np.isnan(self.column("completion_tokens")[filled])
        runs = filled[began & (open_ended | (self.chunks[self.offsets[filled + 1] - 1] >= moment))]
        surplus = (self._tokens_a_chunk[runs] - 1.0) * np.diff(self.offsets)[runs]
        return float(np.maximum(surplus, 0.0).sum())

    def failures(self, among: Flags) -> list[tuple[int, str]]:
        """What the failed requests of these rows failed of, and how many of it, the most frequent first."""
        texts = list(self.errors)
        seen = Counter(int(index) for index in self.column("error")[self.failed & among])
        return [(number, texts[index] if index >= 0 else "unknown") for index, number in seen.most_common()]

    def save(self, file: Path) -> None:
        """Write the arrays as compressed .npz (request rows, chunk times, loop lag)."""
        np.savez_compressed(
            file,
            fields=np.array(RECORD_FIELDS),
            rows=self.rows,
            chunks=self.chunks.astype(np.float32),
            offsets=self.offsets,
            lags=self.lags.astype(np.float32),
        )


def _decode_one(result: RawResult, scale: float) -> tuple[Floats, Floats, Ints, Floats]:
    header = result.header
    rows_n, chunks_n = _number(header, "records"), _number(header, "chunks")
    width = len(RECORD_FIELDS)
    values = np.frombuffer(result.body, dtype=np.float64)
    rows = values[: rows_n * width].reshape(rows_n, width).copy()
    start = float(header["start"])  # type: ignore[arg-type]
    rows[:, _TIMES] = (rows[:, _TIMES] - start) * scale
    chunks = (values[rows_n * width : rows_n * width + chunks_n] - start) * scale
    lags = values[rows_n * width + chunks_n :].copy()
    counts = rows[:, _COLUMN["events"]].astype(np.int64)
    return rows, spread(chunks, counts, gathered=rows[:, _COLUMN["gaps_seen"]] == 0), counts, lags


def spread(chunks: Floats, counts: Ints, gathered: Flags) -> Floats:
    """Chunks that were read together, evenly over the time since the read before; the last of them has its own.

    Args:
        chunks: arrival times, request after request; those of one read are equal.
        counts: chunks of each request.
        gathered: which requests let their chunks gather; the times of the others stay.
    """
    if not gathered.any():
        return chunks
    owners = np.repeat(np.arange(len(counts)), counts)
    starts = np.flatnonzero((np.diff(chunks, prepend=np.nan) != 0) | (np.diff(owners, prepend=-1) != 0))
    sizes = np.diff(starts, append=len(chunks))
    before = np.where(np.diff(owners[starts], prepend=-1) == 0, chunks[starts - 1], chunks[starts])
    rank = np.arange(len(chunks)) - np.repeat(starts, sizes) + 1
    begin, size = np.repeat(before, sizes), np.repeat(sizes, sizes)
    return np.where(gathered[owners], begin + (chunks - begin) * rank / size, chunks)


def _number(header: dict[str, object] | object, key: str) -> int:
    assert isinstance(header, dict)
    value = header.get(key, 0)
    return int(value) if isinstance(value, int | float) else 0


def decode(results: Sequence[RawResult], scale: float) -> Records:
    """Merge what the client processes returned; `scale` turns their seconds into the target's."""
    parts = [_decode_one(item, scale) for item in results]
    errors: dict[str, int] = {}
    remap: list[list[str]] = []
    for item in results:
        texts = [str(text) for text in item.header["errors"]]  # type: ignore[union-attr]
        remap.append(texts)
        for text, count in zip(texts, item.header["error_counts"], strict=True):  # type: ignore[arg-type]
            errors[text] = errors.get(text, 0) + int(count)  # type: ignore[arg-type]
    names = list(errors)
    for (rows, *_), texts in zip(parts, remap, strict=True):
        table = np.array([names.index(text) for text in texts] + [-1], dtype=np.float64)
        rows[:, _COLUMN["error"]] = table[rows[:, _COLUMN["error"]].astype(int)]
    counts = np.concatenate([part[2] for part in parts])
    keys = ("sent", "finished", "failed", "starved", "retried", "overdue")
    spans = [(float(r.header["stopped"]) - float(r.header["start"]), float(r.header["cpu"])) for r in results]  # type: ignore[arg-type]
    return Records(
        rows=np.concatenate([part[0] for part in parts]),
        chunks=np.concatenate([part[1] for part in parts]),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        lags=np.concatenate([part[3] for part in parts]),
        counts={key: sum(_number(item.header, key) for item in results) for key in keys},
        errors=errors,
        cpu_share=max(cpu / max(span, 1e-9) for span, cpu in spans),
        stopped=max(span for span, _ in spans) * scale,
    )
