"""Token ids, text and log-probabilities without a model: deterministic functions of the ids before them.

Log-probabilities follow a fixed pseudo language model over 24 candidates a position. A quantised engine perturbs its
logits; the spread is chosen so that the divergence from the unquantised engine has the size that is measured on real
models: 8-bit KV about 0.001 nats a token, 8-bit weights about 0.006, 4-bit weights about 0.07.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

_PIECES = re.compile(r" ?w\d+|\s?[A-Za-z]{1,5}|\s?\d{1,3}|\s|.", re.DOTALL)
_CANDIDATES = 24
_SLOPE = 0.55  # fall of the logits from one rank to the next, nats
_TAIL = 0.02  # probability outside the candidates
_MASK = (1 << 64) - 1
# Gaussian perturbation of the logits with sigma s gives KL = s^2/2 x (1 - sum p^2); here 1 - sum p^2 is about 0.7.
_SIGMA = {"bf16": 0.0, "fp32": 0.008, "fp16": 0.006, "fp8": 0.13, "int8": 0.10, "int4": 0.45}
_SIGMA_KV = {"bf16": 0.0, "fp32": 0.0, "fp16": 0.0, "fp8": 0.053, "int4": 0.2}


def _mix(value: int) -> int:
    """A 64-bit finaliser (splitmix64): equal inputs give equal, well spread outputs in every process."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Vocabulary:
    """Text to ids and back. Ids without a known text read ``w<id>``, which encodes to the same id again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._text: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ids = []
        for piece in _PIECES.findall(text):
            word = piece.strip()
            if word[:1] == "w" and word[1:].isdigit() and int(word[1:]) < self.size:
                ids.append(int(word[1:]))
                continue
            value = crc32(piece.encode()) % self.size
            self._text.setdefault(value, piece)
            ids.append(value)
        return ids

    def text(self, token: int) -> str:
        """Text of one id."""
        return self._text.get(token) or f" w{token}"

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids."""
        return "".join(self.text(token) for token in tokens)


def seed_of(tokens: Sequence[int]) -> int:
    """A stable number for a prompt: its continuation depends on it."""
    value = len(tokens)
    for token in tokens[-16:]:
        value = _mix(value * 31 + token)
    return value


def output_tokens(seed: int, count: int, vocab: int) -> list[int]:
    """The ids the pseudo model generates after a prompt."""
    return [_mix(seed + index) % vocab for index in range(1, count + 1)]


@dataclass(frozen=True)
class TokenLogprob:
    """One candidate at one position; rank counts from 1."""

    token: int
    logprob: float
    rank: int


class PseudoModel:
    """Log-probabilities of one precision."""

    def __init__(self, vocab: int, weight_format: str, kv_format: str, run_noise: float = 0.0, seed: int = 0) -> None:
        self.vocab = vocab
        self._spreads = tuple(
            (salt, sigma)
            for salt, sigma in (
                (crc32(b"weights" + weight_format.encode()), _SIGMA.get(weight_format, 0.0)),
                (crc32(b"kv" + kv_format.encode()), _SIGMA_KV.get(kv_format, 0.0)),
                (crc32(b"run") + seed, run_noise),
            )
            if sigma
        )

    def position(self, before: Sequence[int], actual: int) -> list[TokenLogprob]:
        """All candidates at a position after ``before`` (its last two ids count), the actual token among them."""
        context = _mix((before[-1] if before else 0) * 1_000_003 + (before[-2] if len(before) > 1 else 0))
        place = int(-math.log(1 - _unit(_mix(context ^ (actual * 2 + 1)))) / _SLOPE) % _CANDIDATES
        logits = []
        for rank in range(_CANDIDATES):
            token = actual if rank == place else _mix(context + rank * 7919) % self.vocab
            logit = -_SLOPE * rank + 0.3 * _bell(_mix(context + rank))
            for salt, sigma in self._spreads:
                logit += sigma * _bell(_mix(context ^ (salt + rank * 104_729)))
            logits.append((logit, token))
        logits.sort(reverse=True)
        total = math.log(sum(math.exp(logit) for logit, _ in logits)) - math.log(1 - _TAIL)
        return [TokenLogprob(token, logit - total, rank) for rank, (logit, token) in enumerate(logits, 1)]

    def top(self, before: Sequence[int], actual: int, count: int) -> list[TokenLogprob]:
        """The actual token first, then the ``count`` likeliest, as vLLM lists them."""
        candidates = self.position(before, actual)
        own = next(item for item in candidates if item.token == actual)
        return [own, *(item for item in candidates[:count] if item.token != actual)]


def _unit(value: int) -> float:
    return value / 2.0**64


def _bell(value: int) -> float:
    """Roughly normal: the sum of four uniform parts of one hash, mean 0, variance 1."""
    parts = (value & 0xFFFF) + (value >> 16 & 0xFFFF) + (value >> 32 & 0xFFFF) + (value >> 48)
    return (parts / 65536.0 - 2.0) * math.sqrt(3.0)
