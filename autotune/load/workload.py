"""What is sent: prompts of exact length, fresh in every trial, with lengths and arrivals that all trials share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from autotune.errors import SpecError
from autotune.load.arrivals import arrival_times
from autotune.load.records import Floats, Ints
from autotune.load.report import Level, Target
from autotune.load.wire import WireRequest
from autotune.spec.study import LengthSpec, LoadSpec

BLOCK = 256
"""Lengths are drawn in blocks of this size, so that they do not depend on how many requests are used."""
HASHED_REQUESTS = 2048
"""The plan's hash covers the lengths and times of so many requests."""
NAN = float("nan")
_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea kid body
information back parent face others level office door health person art war history party result change morning
reason research girl guy moment air teacher force education
"""
WORDS = tuple(_WORDS.split())
"""Common words; nearly every tokenizer has each of them, with its space, as one token."""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What random prompts are made of.

    Attributes:
        ids: token ids that are ordinary text, for prompts by ids; empty where the server cannot take ids.
        words_per_token: for prompts as text.
        overhead: tokens that the chat template adds.
    """

    ids: tuple[int, ...] = ()
    words_per_token: float = 1.0
    overhead: int = 0


def ordinary_ids(vocabulary: int) -> tuple[int, ...]:
    """Token ids that are ordinary text in every common tokenizer of this size.

    Special tokens and single bytes sit at the low end (Llama 2, Gemma, SmolLM), added tokens at the high end (Llama 3,
    Qwen, GLM, Gemma); both ends are left out.
    """
    low = min(1000, vocabulary // 10)
    high = vocabulary - max(vocabulary // 20, min(300, vocabulary // 4))
    return tuple(range(low, max(high, low + 1)))


def draw_lengths(spec: int | LengthSpec, generator: np.random.Generator, size: int) -> Ints:
    """Token lengths by the law of `spec`, rounded and cut to [low, high].

    Raises:
        SpecError: an `empirical` file is missing or holds no lengths.
    """
    if isinstance(spec, int):
        return np.full(size, spec, dtype=np.int64)
    low, high = spec.low, spec.high if spec.high is not None else 10_000_000
    if spec.kind == "fixed":
        values = np.full(size, spec.mean)
    elif spec.kind == "normal":
        values = generator.normal(spec.mean, spec.stdev, size)
    elif spec.kind == "lognormal":
        # mean and stdev are those of the lengths themselves, not of their logarithms
        sigma2 = np.log1p((spec.stdev / spec.mean) ** 2)
        values = generator.lognormal(np.log(spec.mean) - sigma2 / 2, np.sqrt(sigma2), size)
    elif spec.kind == "uniform":
        top = spec.high if spec.high is not None else max(low, round(2 * spec.mean - low))
        values = generator.integers(low, top + 1, size).astype(np.float64)
    else:
        values = draw_empirical(spec.file, generator, size)
    lengths: Ints = np.clip(np.rint(values), low, high).astype(np.int64)
    return lengths


def draw_empirical(file: str | None, generator: np.random.Generator, size: int) -> Floats:
    """Lengths drawn from a file: one length a line, or a histogram written by `autotune load from-metrics`."""
    if file is None:
        raise SpecError("an empirical length needs a file", key="load.*_tokens.file", hint="file: lengths.txt")
    try:
        text = Path(file).read_text()
    except OSError as error:
        raise SpecError(f"cannot read the lengths: {error.strerror}", file=file) from None
    if text.lstrip().startswith("{"):
        return _draw_histogram(file, text, generator, size)
    numbers: list[float] = []
    for line, entry in enumerate(text.splitlines(), 1):
        if entry.strip() and not entry.lstrip().startswith("#"):
            try:
                numbers.append(float(entry.split(",")[0]))
            except ValueError:
                raise SpecError(f"{entry!r} is no length", file=file, line=line, hint="one number a line") from None
    if not numbers:
        raise SpecError("the file holds no lengths", file=file, hint="one number a line")
    return generator.choice(np.array(numbers), size)


def _draw_histogram(file: str, text: str, generator: np.random.Generator, size: int) -> Floats:
    try:
        buckets = json.loads(text)["buckets"]
        edges = np.array([[float(item["low"]), float(item["high"])] for item in buckets])
        weights = np.array([float(item["count"]) for item in buckets])
    except (ValueError, KeyError, TypeError):
        raise SpecError(
            "the histogram cannot be read", file=file, hint='{"buckets": [{"low": 0, "high": 10, "count": 5}]}'
        ) from None
    if not len(weights) or weights.sum() <= 0:
        raise SpecError("the histogram is empty", file=file)
    chosen = generator.choice(len(weights), size, p=weights / weights.sum())
    low, high = edges[chosen, 0], edges[chosen, 1]
    lengths: Floats = np.maximum(1.0, np.ceil(low + (high - low) * (1.0 - generator.random(size))))
    return lengths


@dataclass(frozen=True, slots=True)
class Turn:
    """One planned request: lengths, prefix group (-1: none), planned time, and whether it follows the one before."""

    input_tokens: int
    output_tokens: int
    prefix: int = -1
    due: float = NAN
    follows: bool = False
    blocks: tuple[int, ...] = ()
    """Ids of shared blocks (traces), the first ones of the prompt."""
    block_tokens: int = 512
    text: str = ""
    """A prompt of the user's own, sent as it is."""


def planned_turns(spec: LoadSpec, level: Level, number: int) -> Iterator[Turn]:
    """The endless plan of one level: equal for all trials of a study (it depends on the load alone)."""
    lengths = np.random.default_rng([spec.seed, number, 1])
    times: Iterator[float] | None = None
    if spec.arrivals in ("constant", "poisson", "gamma"):
        kind = spec.arrivals
        times = arrival_times(kind, level.value, spec.burstiness, [spec.seed, number, 2])
    while True:
        inputs = draw_lengths(spec.input_tokens, lengths, BLOCK)
        outputs = draw_lengths(spec.output_tokens, lengths, BLOCK)
        prefixes = lengths.integers(0, spec.prefix.count, BLOCK) if spec.prefix else np.full(BLOCK, -1)
        shares = lengths.random(BLOCK)
        for position in range(BLOCK):
            follows = spec.turns > 1 and position % spec.turns > 0
            use = spec.prefix is not None and shares[position - position % spec.turns] < spec.prefix.share
            yield Turn(
                input_tokens=int(inputs[position]),
                output_tokens=int(outputs[position]),
                prefix=int(prefixes[position - position % spec.turns]) if use else -1,
                due=next(times) if times is not None and not follows else NAN,
                follows=follows,
            )


@dataclass
class RequestMaker:
    """Turns the plan into requests with fresh content.

    Args:
        target: the server.
        spec: the load.
        alphabet: what prompts are made of.
        content_seed: numbers that make this content different from every other trial's and level's.
    """

    target: Target
    spec: LoadSpec
    alphabet: Alphabet
    content_seed: list[int]
    prompt_lengths: list[int] = field(default_factory=list)
    """Planned prompt length of every request made so far, by index."""

    def __post_init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._index = count()
        self._generator = np.random.default_rng([*self.content_seed, 4])
        self._history: list[int] = []
        self._shared: dict[tuple[int, int, int], list[int]] = {}
        self._by_ids = self.spec.api == "completions" and bool(self.alphabet.ids)
        self._table = [str(item) for item in self.alphabet.ids] if self._by_ids else [" " + word for word in WORDS]
        self._head = self._http_head()

    def _http_head(self) -> bytes:
        parts = urlsplit(self.target.url)
        path = parts.path.rstrip("/")
        route = "/chat/completions" if self.spec.api == "chat" else "/completions"
        route = path + route if path.endswith("/v1") else path + "/v1" + route
        lines = [f"POST {route} HTTP/1.1", f"Host: {parts.netloc}", "Content-Type: application/json",
                 "Accept: text/event-stream"]  # fmt: skip
        if self.target.api_key:
            lines.append(f"Authorization: Bearer {self.target.api_key}")
        return ("\r\n".join(lines) + "\r\nContent-Length: ").encode()

    @property
    def exact(self) -> bool:
        """Prompt lengths are exact (by token ids)."""
        return self._by_ids

    @property
    def expected_hits(self) -> float:
        """Highest prefix hit rate that the load can give by design; template and prefixes are shared on purpose."""
        lengths = self.prompt_lengths or [1]
        mean = sum(lengths) / len(lengths)
        shared = float(self.alphabet.overhead)
        if self.spec.prefix is not None:
            shared += self.spec.prefix.share * self.spec.prefix.tokens
        return min(1.0, shared / max(mean, 1.0))

    @property
    def content_hash(self) -> str:
        """Hash of everything made so far."""
        return self._digest.hexdigest()

    def _draw(self, generator: np.random.Generator, tokens: int) -> list[int]:
        """Positions in the alphabet. Frequent tokens (low ids, by how BPE is built) come more often, as in text."""
        size = len(self._table)
        if size < 200:
            return [int(item) for item in generator.integers(0, size, tokens)]
        offset = size * 0.02
        ranks = offset * np.exp(generator.random(tokens) * np.log((size + offset) / offset)) - offset
        positions: list[int] = np.minimum(ranks.astype(np.int64), size - 1).tolist()
        return positions

    def _block(self, kind: int, name: int, tokens: int) -> list[int]:
        key = (kind, name, tokens)
        if key not in self._shared:
            generator = np.random.default_rng([self.content_seed[0], 5, kind, name])
            self._shared[key] = self._draw(generator, tokens)
        return self._shared[key]

    def _prompt(self, turn: Turn) -> list[int]:
        wanted = turn.input_tokens
        if not self._by_ids:
            wanted = max(1, round((wanted - self.alphabet.overhead) * self.alphabet.words_per_token))
        start: list[int] = []
        if turn.follows:
            start = self._history
            wanted += len(start)
        elif turn.prefix >= 0 and self.spec.prefix is not None:
            start = self._block(0, turn.prefix, min(self.spec.prefix.tokens, wanted))
        elif turn.blocks:
            for name in turn.blocks:
                start = start + self._block(1, name, turn.block_tokens)
            start = start[:wanted]
        return start + self._draw(self._generator, max(0, wanted - len(start)))

    def make(self, turn: Turn, scale: float) -> WireRequest:
        """The request for a turn; its due time is in real seconds (`scale` is the target's time scale)."""
        if turn.text:
            prompt: list[int] = []
            text = json.dumps(turn.text)
        else:
            prompt = self._prompt(turn)
            table = self._table
            joined = (",".join if self._by_ids else "".join)([table[position] for position in prompt])
            text = f"[{joined}]" if self._by_ids else json.dumps(joined.lstrip())
        if self.spec.turns > 1:
            self._history = prompt + self._draw(self._generator, turn.output_tokens)
        asked = f'"messages":[{{"role":"user","content":{text}}}]' if self.spec.api == "chat" else f'"prompt":{text}'
        body = (
            f'{{"model":{json.dumps(self.target.model)},{asked},"max_tokens":{turn.output_tokens},"temperature":0,'
            '"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}'
        ).encode()
        self._digest.update(body)
        planned = len(prompt) if self._by_ids else 0 if turn.text else turn.input_tokens
        self.prompt_lengths.append(planned)
        data = self._head + str(len(body)).encode() + b"\r\n\r\n" + body
        return WireRequest(next(self._index), turn.due / scale, turn.output_tokens, turn.follows, data)


def plan_hash(spec: LoadSpec, level: Level, turns: Iterator[Turn]) -> str:
    """Hash of the lengths and times of a level; equal for all trials of a study."""
    digest = hashlib.blake2b(f"{spec.api} {level}".encode(), digest_size=16)
    for _, turn in zip(range(HASHED_REQUESTS), turns, strict=False):
        due = "" if turn.due != turn.due else f"{turn.due:.6f}"
        fields = f"{turn.input_tokens} {turn.output_tokens} {turn.prefix} {due} {turn.follows} {turn.blocks}\n"
        digest.update(fields.encode())
    return digest.hexdigest()
