"""Tiers 0 and 1 of one engine against a reference: what is asked, in which order, and what becomes of a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.quality import sanity
from autotune.quality.answers import ScorerError
from autotune.quality.corpus import PROBE
from autotune.quality.divergence import Divergence
from autotune.quality.hooks import Hooks
from autotune.quality.observe import Observation, Suite, chat_ids, observe, observe_traces, observe_windows
from autotune.quality.reference import Reference
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.quality.verdict import Limits, divergence_checks, verdict_of
from autotune.quality.wire import Scorer


async def candidate_checks(
    scorer: Scorer, reference: Reference, suite: Suite, limits: Limits, seen: Observation | None = None
) -> list[QualityCheck]:
    """Every check of tiers 0 and 1.

    Args:
        scorer: the engine.
        reference: what it is compared with.
        suite: how many continuations are in flight.
        limits: the study's limits.
        seen: what the engine has shown already, where it has just recorded the reference.

    Raises:
        ScorerError: the engine does not answer (within an exception group where several requests were in flight).
    """
    checks = await text_checks(scorer, reference)
    checks += await _writing_checks(scorer, reference)
    fresh = seen is None
    seen = seen or await observe(scorer, reference, suite.concurrency)
    # Whoever recorded the reference is held responsible for the reference's own numbers, too.
    own = () if fresh else tuple(window.scored for window in reference.windows)
    finite = sanity.finite_check([*seen.scored, *own])
    checks += [finite, *(_refusal(path, why) for path, why in seen.refused)]
    if finite.verdict is QualityVerdict.FAILED:
        return checks
    compared = divergence_checks(seen.windows, seen.traces, reference.noise, limits)
    if verdict_of(compared) is QualityVerdict.UNDECIDED:
        read, wrote = await _more(scorer, reference, suite, seen, compared)
        compared = divergence_checks([*seen.windows, *read], [*seen.traces, *wrote], reference.noise, limits)
    compared = [_with_path(check, seen.hooks) for check in compared]
    wanted = reference.abilities if fresh else frozenset[str]()
    return [*checks, *compared, *await sanity.structured_checks(scorer, wanted)]


async def _more(
    scorer: Scorer, reference: Reference, suite: Suite, seen: Observation, compared: Sequence[QualityCheck]
) -> tuple[list[Divergence], list[Divergence]]:
    """The texts that were kept back, of the paths and lengths of context that are open: read ones, written ones."""
    undecided = {check.name for check in compared if check.verdict is QualityVerdict.UNDECIDED}
    reading = seen.windows and undecided & {"kl", "perplexity", "agreement"}
    windows = reference.windows[reference.documents :] if reading else ()
    traces = [trace for trace in reference.traces if trace.reserve and f"kl[{trace.bucket}]" in undecided]
    read = [item for item, _ in await observe_windows(scorer, windows, seen.hooks)]
    wrote = [item for item, _ in await observe_traces(scorer, traces, suite.concurrency, seen.hooks)]
    return read, wrote


async def text_checks(scorer: Scorer, reference: Reference) -> list[QualityCheck]:
    """Same ids for the same text, and for the same conversation."""
    same = await scorer.tokenize(PROBE) == reference.probe
    found = [sanity.yes_or_no("tokenizer", same, "" if same else "the tokenizer splits the probe text differently")]
    if reference.chat:
        same = await chat_ids(scorer) == reference.chat
        note = "" if same else "the chat template renders the probe conversation differently"
        found.append(sanity.yes_or_no("template", same, note))
    return found


async def _writing_checks(scorer: Scorer, reference: Reference) -> list[QualityCheck]:
    """One free continuation: exactly as long as asked for, and no collapse."""
    if not reference.traces:
        return []
    trace = reference.traces[0]
    try:
        written = await scorer.continue_(trace.prompt, len(trace.tokens))
    except ScorerError as error:
        if error.refused:
            return []  # reported as a refusal of the whole path
        raise
    return [sanity.count_check(len(trace.tokens), written), sanity.repetition_check(trace.tokens, written.tokens)]


def _with_path(check: QualityCheck, hooks: Hooks) -> QualityCheck:
    """Say which hook of the server a figure was made with."""
    if check.name == "kl" and hooks.by_ids:
        return replace(check, note=f"{check.note}; on exactly the baseline's tokens")
    if check.name.startswith("kl[") and hooks.replay:
        return replace(check, note=f"{check.note}; replayed")
    return check


def _refusal(path: str, why: str) -> QualityCheck:
    """A path that cannot be looked at is open: what was not compared is not known to be good."""
    name = "kl" if path == "prefill" else "kl[decode]"
    check = sanity.yes_or_no(name, False, f"cannot be compared: {why[:200]}", 1)
    return replace(check, verdict=QualityVerdict.UNDECIDED)
