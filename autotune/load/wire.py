"""What the driver and its client processes say to each other: length-prefixed frames on a socket pair.

Only the standard library is imported here, because every client process imports it at start.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"

HEADER = struct.Struct("<QB")
"""Payload size in bytes and kind of frame."""
MESSAGE, REQUESTS, RESULTS = 1, 2, 3

_REQUEST = struct.Struct("<QdIIB")

RECORD_FIELDS = (
    "index",
    "due",
    "sent",
    "first",
    "visible",
    "choice",
    "last",
    "end",
    "planned_output",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "events",
    "status",
    "error",
    "attempts",
    "gaps_seen",
)
"""One request as the client saw it; times are CLOCK_MONOTONIC seconds, NaN for what never happened.

`due` is the planned send time (open loop), `first` the first token of any kind, `visible` the first one that a reader
sees (no reasoning), `choice` the first chunk with choices even if it is empty, `last` the last one with choices, `end`
the end of the response. `events` counts the token chunks, `status` is one of OK, FAILED, UNFINISHED, `error` an index
into the list of error texts, token counts are the server's (NaN where it sent none). `gaps_seen` is 1 where every chunk
was read when it came, 0 where chunks were left to gather, so that the times between them are not known.
"""
OK, FAILED, UNFINISHED = 0.0, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A complete HTTP request.

    Attributes:
        index: number of the request in its level's plan.
        due: seconds after the start of the load (open loop); NaN in closed loop.
        output_tokens: planned answer length.
        follows: it is the next turn after the request before it, and is sent when that one has ended.
        data: the bytes to send, head and body.
    """

    index: int
    due: float
    output_tokens: int
    follows: bool
    data: bytes


def frame(kind: int, payload: bytes) -> bytes:
    """A frame ready to be written."""
    return HEADER.pack(len(payload), kind) + payload


def message(fields: Mapping[str, JsonValue]) -> bytes:
    """A frame with a small JSON object."""
    return frame(MESSAGE, json.dumps(fields).encode())


def pack_requests(requests: Iterable[WireRequest]) -> bytes:
    """A frame with requests."""
    parts: list[bytes] = []
    for item in requests:
        parts.append(_REQUEST.pack(item.index, item.due, item.output_tokens, len(item.data), item.follows))
        parts.append(item.data)
    return frame(REQUESTS, b"".join(parts))


def unpack_requests(payload: bytes) -> list[WireRequest]:
    """The requests of a frame's payload."""
    found: list[WireRequest] = []
    offset = 0
    while offset < len(payload):
        index, due, output_tokens, size, follows = _REQUEST.unpack_from(payload, offset)
        offset += _REQUEST.size
        found.append(WireRequest(index, due, output_tokens, bool(follows), payload[offset : offset + size]))
        offset += size
    return found


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add bytes; returns the frames that are complete now as (kind, payload)."""
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, bytes]] = []
        start = 0
        while len(buffer) - start >= HEADER.size:
            size, kind = HEADER.unpack_from(buffer, start)
            end = start + HEADER.size + size
            if len(buffer) < end:
                break
            frames.append((kind, bytes(buffer[start + HEADER.size : end])))
            start = end
        if start:
            del buffer[:start]
        return frames
