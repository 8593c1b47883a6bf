"""The API server process: one Python event loop that admits requests and turns tokens into events.

It runs beside the engine, so a burst of finished tokens does not stop the GPU, but it has a rate of its own: with
many streams the engine gets ahead and the clients see tokens late. This is what makes throughput fall above some
concurrency although the GPU is not slower. Admission is served between chunks of output, not behind all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

REQUEST_S = 1.1e-3
"""Parsing, validating and queueing a request with a thousand prompt tokens."""
TOKEN_S = 64e-6
"""Detokenising one token and writing its event."""
CROWDING_S = 0.06e-6
"""More for every token of the same step: an event loop with more streams spends more on each of them."""


@dataclass
class Frontend:
    """Simulated time at which the event loop is free again, for outputs and for admissions."""

    servers: int = 1
    outputs_free_s: float = 0.0
    admissions_free_s: float = 0.0

    def admit(self, now: float) -> float:
        """When a request that arrives now reaches the engine."""
        start = max(now, self.admissions_free_s)
        self.admissions_free_s = start + REQUEST_S / self.servers
        self.outputs_free_s = max(now, self.outputs_free_s) + REQUEST_S / self.servers
        return self.admissions_free_s

    def deliver(self, now: float, tokens: int) -> float:
        """When the tokens of a step that ends now have all been written to their clients."""
        cost = tokens * (TOKEN_S + CROWDING_S * tokens) / self.servers
        self.outputs_free_s = max(now, self.outputs_free_s) + cost
        return self.outputs_free_s
