"""Which engine of a trial takes a request: least loaded, by role and by the length of the prompt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Json = Mapping[str, object]

REMOTE: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What tells vLLM's NIXL connector to keep the prompt's KV cache for another engine."""


@dataclass(frozen=True, slots=True)
class Place:
    """One engine as the router knows it."""

    name: str
    role: str
    url: str
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """What a router is started with.

    Attributes:
        places: the engines.
        threshold: tokens of a prompt from which on it goes to a prefill engine.
        transfer: the KV cache is moved from prefill to decode; otherwise a prefill engine answers by itself.
        characters_per_token: for prompts that are text.
        api_key: that clients must send; empty for none.
    """

    places: tuple[Place, ...]
    threshold: int = 512
    transfer: bool = False
    characters_per_token: float = 4.0
    api_key: str = field(default="", repr=False)

    def of_role(self, prefill: bool) -> tuple[Place, ...]:
        """The prefill engines, or all others."""
        return tuple(place for place in self.places if (place.role == "prefill") is prefill)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: `prefill` first where it is not None, then (or only) `answer`."""

    answer: Place
    prefill: Place | None = None


@dataclass
class Burden:
    """What each engine has to do now, and how much it was given: requests by name, and prompt tokens not yet read."""

    requests: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)

    def take(self, place: Place, tokens: int) -> None:
        """A request of so many prompt tokens goes to `place`."""
        self.requests[place.name] = self.requests.get(place.name, 0) + 1
        self.tokens[place.name] = self.tokens.get(place.name, 0) + tokens
        self.given[place.name] = self.given.get(place.name, 0) + 1

    def done(self, place: Place, tokens: int) -> None:
        """It has ended, however."""
        self.requests[place.name] -= 1
        self.tokens[place.name] -= tokens

    def lightest(self, places: Sequence[Place], *, by_tokens: bool) -> Place:
        """The engine with the least to do: prompts count by their tokens, answers by their number.

        Ties go to the one that was given least so far, so that an idle set takes turns.
        """

        def load(place: Place) -> tuple[int, int, int]:
            tokens, requests = self.tokens.get(place.name, 0), self.requests.get(place.name, 0)
            first, second = (tokens, requests) if by_tokens else (requests, tokens)
            return first, second, self.given.get(place.name, 0)

        return min(places, key=load)


def route(settings: RouterSettings, burden: Burden, body: Json, tokens: int) -> Route:
    """Where a request with a prompt of `tokens` tokens goes."""
    prefill, others = settings.of_role(True), settings.of_role(False)
    if not prefill or tokens < settings.threshold:
        return Route(burden.lightest(others or prefill, by_tokens=False))
    first = burden.lightest(prefill, by_tokens=True)
    if not settings.transfer:
        return Route(first)
    # What describes the prompt itself is answered by the engine that reads it; one token needs no second engine.
    if _about_the_prompt(body) or _longest_answer(body) == 1:
        return Route(first)
    return Route(burden.lightest(others, by_tokens=False), first)


def prompt_tokens(body: Json, characters_per_token: float) -> int:
    """Tokens of the longest prompt of a request: counted where it is token ids, estimated where it is text."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return _estimate(len(prompt), characters_per_token)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return len(prompt)
        lengths = [
            _estimate(len(item), characters_per_token) if isinstance(item, str) else len(item)
            for item in prompt
            if isinstance(item, str | list)
        ]
        return max(lengths, default=0)
    messages = body.get("messages")
    return _estimate(sum(map(_characters, messages)), characters_per_token) if isinstance(messages, list) else 0


def prefill_body(body: Json) -> dict[str, object]:
    """The first of two requests: read the prompt, answer one token, keep the KV cache for the other engine."""
    first = {name: value for name, value in body.items() if name != "stream_options"}
    first |= {"stream": False, "max_tokens": 1, "kv_transfer_params": dict(REMOTE)}
    for name in ("max_completion_tokens", "min_tokens"):
        if name in first:
            first[name] = 1
    return first


def decode_body(body: Json, answer: Json) -> dict[str, object] | None:
    """The second of two requests, with what the first one says of its KV cache; None where it says nothing."""
    handed = answer.get("kv_transfer_params")
    return {**body, "kv_transfer_params": handed} if isinstance(handed, dict) and handed else None


def _estimate(characters: int, characters_per_token: float) -> int:
    return int(characters / characters_per_token)


def _characters(message: object) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return sum(len(str(part.get("text", ""))) for part in content if isinstance(part, dict))
    return len(content) if isinstance(content, str) else 0


def _about_the_prompt(body: Json) -> bool:
    return body.get("prompt_logprobs") is not None or bool(body.get("echo"))


def _longest_answer(body: Json) -> object:
    return body.get("max_completion_tokens", body.get("max_tokens"))
