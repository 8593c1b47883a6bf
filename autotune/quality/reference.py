"""The reference: what the baseline answered, as a value that fits into the study's database or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import SpecError
from autotune.quality.answers import TOP, Scored
from autotune.quality.arrays import pack, unpack_ids, unpack_reals

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Window:
    """A fixed text as ids, and the reference's distributions at every position but the first."""

    tokens: tuple[int, ...]
    scored: Scored


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt, what the reference wrote after it greedily, and its distributions while it wrote.

    `bucket` says how long the context is: `decode` for short ones, else such as `4k`. A `reserve` is looked at only
    where the others of its bucket do not decide.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    scored: Scored
    bucket: str
    reserve: bool = False


@dataclass(frozen=True, slots=True)
class Noise:
    """How far the reference is from itself when it runs again, in other batches.

    Attributes:
        kl: mean KL, nats per token.
        loss: absolute mean change of log-probability, nats per token.
        disagreement: share of other first tokens where it is sure.
    """

    kl: float = 0.0
    loss: float = 0.0
    disagreement: float = 0.0

    def worst(self, other: Noise) -> Noise:
        """The larger of both, figure by figure."""
        return Noise(max(self.kl, other.kl), max(self.loss, other.loss), max(self.disagreement, other.disagreement))


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything that candidates are compared with.

    Attributes:
        suite: hash of texts and sizes.
        model: the model's name in the study.
        version: the engine's version.
        key: precision key of the engine that it was recorded from.
        probe: ids of the tokenizer's probe text.
        chat: ids of the probe conversation; empty where the model has no chat template.
        windows: fixed texts; the first `documents` are scored always, the rest where these do not decide.
        documents: how many windows are scored at first.
        traces: greedy continuations.
        abilities: structured answers that the reference managed: `json`, `tool`.
        noise: noise floor by path: `prefill`, `decode` or a bucket.
    """

    suite: str
    model: str
    version: str
    key: str
    probe: tuple[int, ...]
    chat: tuple[int, ...]
    windows: tuple[Window, ...]
    documents: int
    traces: tuple[Trace, ...]
    abilities: frozenset[str]
    noise: Mapping[str, Noise]

    def to_json(self) -> str:
        """As text; arrays are packed, about 80 bytes a position."""
        return json.dumps(
            {
                "format": FORMAT, "suite": self.suite, "model": self.model, "version": self.version, "key": self.key,
                "probe": self.probe, "chat": self.chat, "documents": self.documents,
                "windows": [{"tokens": item.tokens, **_packed(item.scored)} for item in self.windows],
                "traces": [
                    {"prompt": item.prompt, "tokens": item.tokens, "bucket": item.bucket, "reserve": item.reserve,
                     **_packed(item.scored)} for item in self.traces
                ],
                "abilities": sorted(self.abilities),
                "noise": {name: [item.kl, item.loss, item.disagreement] for name, item in self.noise.items()},
            },
            separators=(",", ":"),
        )  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Reference:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is no reference, or one of another format.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}, but this version reads {FORMAT}")
            return Reference(
                str(data["suite"]), str(data["model"]), str(data["version"]), str(data["key"]),
                tuple(data["probe"]), tuple(data["chat"]),
                tuple(Window(tuple(w["tokens"]), _unpacked(w, len(w["tokens"]) - 1)) for w in data["windows"]),
                int(data["documents"]),
                tuple(
                    Trace(tuple(t["prompt"]), tuple(t["tokens"]), _unpacked(t, len(t["tokens"])), str(t["bucket"]),
                          bool(t.get("reserve"))) for t in data["traces"]
                ),
                frozenset(data["abilities"]),
                {str(name): Noise(*values) for name, values in data["noise"].items()},
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise ValueError(f"no quality reference: {type(error).__name__}: {error}") from error


def read_reference(path: Path) -> Reference:
    """Read a reference file.

    Raises:
        SpecError: there is none, or it is damaged.
    """
    hint = "give the quality-reference.json of a study's baseline trial, or leave it out to record a new one"
    try:
        return Reference.from_json(path.read_text("utf-8"))
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=path, key="quality.reference", hint=hint) from error
    except ValueError as error:
        raise SpecError(f"is no quality reference ({error})", file=path, key="quality.reference", hint=hint) from error


def _packed(scored: Scored) -> dict[str, str]:
    return {"target": pack(scored.target), "ids": pack(scored.ids), "logprobs": pack(scored.logprobs)}


def _unpacked(data: Mapping[str, str], length: int) -> Scored:
    shape = (length, TOP)
    return Scored(
        unpack_reals(data["target"], (length,)), unpack_ids(data["ids"], shape), unpack_reals(data["logprobs"], shape)
    )
