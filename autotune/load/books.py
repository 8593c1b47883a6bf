"""What one client process writes down of a level, and how it hands it over."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping

from autotune.load.stream import Record, Stream
from autotune.load.wire import FAILED, OK, JsonValue

ERROR_TEXTS = 50
"""Different error texts that are kept; what follows counts as other errors."""


class Books:
    """Requests, chunk times, errors and counters of one level.

    Attributes:
        counts: sums by name, as `records.Records.counts`.
        errors: error texts and how often each was seen.
        lags: delays of the loop's heartbeat, seconds.
        first_tokens: times to first token since they were last told, seconds.
        chunks_per_token: the lowest of any answer so far; 1 while nobody puts several tokens into a chunk.
    """

    def __init__(self) -> None:
        self.counts = {"sent": 0, "finished": 0, "failed": 0, "starved": 0, "retried": 0, "tokens": 0}
        self.errors: dict[str, int] = {}
        self.lags = array("d")
        self.first_tokens: list[float] = []
        self.chunks_per_token = 1.0
        self._records: list[Record] = []
        self._logs: list[array[float]] = []

    def keep(self, stream: Stream, status: float, error: str) -> None:
        """Write down the request of a stream, which ended or is given up."""
        code = -1.0
        if error:
            text = error if error in self.errors or len(self.errors) < ERROR_TEXTS else "other errors"
            self.errors[text] = self.errors.get(text, 0) + 1
            code = float(list(self.errors).index(text))
        chunks = len(stream.chunk_log)
        self._records.append(stream.record(status, code))
        self._logs.append(stream.chunk_log)
        self.counts["tokens"] += chunks
        self.counts["finished"] += status == OK
        self.counts["failed"] += status == FAILED
        if status == OK and stream.usage[1] > chunks:
            self.chunks_per_token = min(self.chunks_per_token, chunks / stream.usage[1])

    def close(self, header: Mapping[str, JsonValue]) -> bytes:
        """Everything as the payload of a RESULTS frame: size of the header, header, rows, chunk times, lags."""
        fields: dict[str, JsonValue] = {
            **header, "errors": list(self.errors), "error_counts": list(self.errors.values()),
            "records": len(self._records), "chunks": sum(len(log) for log in self._logs), "lags": len(self.lags),
            **self.counts,
        }  # fmt: skip
        text = json.dumps(fields).encode()
        rows = array("d", (value for record in self._records for value in record))
        parts = [struct.pack("<I", len(text)), text, rows.tobytes()]
        parts += [log.tobytes() for log in self._logs]
        parts.append(self.lags.tobytes())
        return b"".join(parts)
