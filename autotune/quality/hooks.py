"""vLLM's newer hooks: which of them a server really has, and their requests and answers.

`prompt_logprob_token_ids` (one list of ids per position since vLLM 0.32) scores given tokens while reading, and
`trace_decode_token_ids` (since 0.29) makes the engine write a given text while it computes true log-probabilities.
Both travel in the `sampling_params` of `/inference/v1/generate`, need vLLM's V2 model runner, and are there only where
the engine was started with `--enable-scale-out` (from 0.30 on) and, for the second, `--enable-trace-replay`. So a
server is asked, not its version: each hook is tried on a few tokens, and used where the answer is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.quality.answers import ScorerError
from autotune.quality.wire import Scorer

PROBED = 6
"""Tokens of the text that a hook is tried on."""
PROBE_TOLERANCE = 0.2
"""Nats by which the probed scores may differ from those of `prompt_logprobs`: another batch, half precision."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a server can do beyond any vLLM.

    Attributes:
        by_ids: it scores given tokens while it reads.
        replay: it writes a given text.
    """

    by_ids: bool = False
    replay: bool = False


NONE = Hooks()


async def find_hooks(scorer: Scorer, text: Sequence[int]) -> Hooks:
    """Try both hooks on the beginning of a text.

    Raises:
        ScorerError: the server does not answer at all.
    """
    some = tuple(text[:PROBED])
    if len(some) < PROBED:
        return NONE
    return Hooks(await _scores_ids(scorer, some), await _replays(scorer, some))


async def _scores_ids(scorer: Scorer, text: tuple[int, ...]) -> bool:
    """The same log-probabilities as by `prompt_logprobs`, for ids that differ from row to row."""
    try:
        known = await scorer.score(text)
        wanted = known.ids[:, 1::-1]
        found = await scorer.score_ids(text, wanted)
    except ScorerError as error:
        return _absent(error)
    matches = (found.ids[:, None, :] == wanted[:, :, None]).argmax(axis=2)
    apart = np.take_along_axis(found.logprobs, matches, axis=1) - known.logprobs[:, 1::-1]
    return bool((np.abs(apart) < PROBE_TOLERANCE).all())


async def _replays(scorer: Scorer, text: tuple[int, ...]) -> bool:
    """It writes what no greedy engine would write: the same token again and again, then another one."""
    forced = (text[0], text[0], text[-1], text[0])
    try:
        written = await scorer.replay(text, forced)
    except ScorerError as error:
        return _absent(error)
    return written.tokens == forced and len(written.scored) == len(forced)


def _absent(error: ScorerError) -> bool:
    """False for a server that answers in any way; one that does not answer is not judged here."""
    if not error.status:
        raise error
    return False
