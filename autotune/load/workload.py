"""What is sent: prompts of exact length with fresh content in every trial."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from urllib.parse import urlsplit

import numpy as np

from autotune.load.pictures import image_part, random_png
from autotune.load.records import Ints
from autotune.load.report import Target
from autotune.load.turns import Turn
from autotune.load.wire import WireRequest
from autotune.spec.study import LoadSpec

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


SHARED_BLOCKS = 2048
"""Shared texts kept in memory; others are made again from their seed."""
_NOTHING: Ints = np.zeros(0, dtype=np.int64)


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
    """Planned prompt length of every request made so far, by index; images, priced by the server alone, left out."""
    sent_bytes: int = 0
    """Bytes of all bodies made so far."""

    def __post_init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._index = count()
        self._generator = np.random.default_rng([*self.content_seed, 4])
        self._history: Ints = _NOTHING
        self._block = lru_cache(maxsize=SHARED_BLOCKS)(self._make_block)
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

    def _draw(self, generator: np.random.Generator, tokens: int) -> Ints:
        """Positions in the alphabet. Frequent tokens (low ids, by how BPE is built) come more often, as in text."""
        size = len(self._table)
        if size < 200:
            return generator.integers(0, size, tokens)
        offset = size * 0.02
        ranks = offset * np.exp(generator.random(tokens) * np.log((size + offset) / offset)) - offset
        positions: Ints = np.minimum(ranks.astype(np.int64), size - 1)
        return positions

    def _make_block(self, kind: int, name: int, tokens: int) -> Ints:
        """A text that several prompts share. Its content depends on its name and on the trial alone."""
        return self._draw(np.random.default_rng([self.content_seed[0], 5, kind, name]), tokens)

    def _prompt(self, turn: Turn) -> Ints:
        wanted = turn.input_tokens
        if not self._by_ids:
            wanted = max(1, round((wanted - self.alphabet.overhead) * self.alphabet.words_per_token))
        parts: list[Ints] = []
        if turn.follows:
            parts = [self._history]
            wanted += len(self._history)
        elif turn.prefix >= 0 and self.spec.prefix is not None:
            parts = [self._block(0, turn.prefix, self.spec.prefix.tokens)]
        elif turn.blocks:
            parts = [self._block(1, name, turn.block_tokens) for name in turn.blocks]
        known = sum(len(part) for part in parts)
        parts.append(self._draw(self._generator, max(0, wanted - known)))
        return np.concatenate(parts)[:wanted]

    def _content(self, turn: Turn, text: str) -> str:
        """A chat message's content: the text (JSON), or the text and then the images."""
        if not turn.images or self.spec.images is None:
            return text
        size = self.spec.images.width, self.spec.images.height
        parts = [image_part(random_png(self._generator, *size)) for _ in range(turn.images)]
        return ",".join([f'[{{"type":"text","text":{text}}}', *parts]) + "]"

    def make(self, turn: Turn, scale: float) -> WireRequest:
        """The request for a turn; its due time is in real seconds (`scale` is the target's time scale)."""
        if turn.text:
            prompt = _NOTHING
            text = json.dumps(turn.text)
        else:
            prompt = self._prompt(turn)
            table = self._table
            joined = (",".join if self._by_ids else "".join)([table[position] for position in prompt.tolist()])
            text = f"[{joined}]" if self._by_ids else json.dumps(joined.lstrip())
        if self.spec.turns > 1:
            self._history = np.concatenate([prompt, self._draw(self._generator, turn.output_tokens)])
        asked = f'"prompt":{text}'
        if self.spec.api == "chat":
            asked = f'"messages":[{{"role":"user","content":{self._content(turn, text)}}}]'
        body = (
            f'{{"model":{json.dumps(self.target.model)},{asked},"max_tokens":{turn.output_tokens},"temperature":0,'
            '"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}'
        ).encode()
        self._digest.update(body)
        planned = len(prompt) if self._by_ids else 0 if turn.text else turn.input_tokens
        self.prompt_lengths.append(planned)
        self.sent_bytes += len(body)
        data = self._head + str(len(body)).encode() + b"\r\n\r\n" + body
        return WireRequest(next(self._index), turn.due / scale, turn.output_tokens, turn.follows, data)
