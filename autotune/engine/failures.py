"""Why an engine failed, and what follows from it.

`classify` reads a finished log, `Watcher` one that is being written. Both weigh the lines by their signatures
(``failures.toml``), then look at what the log cannot know: free memory before the start, the kernel log, the clock.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from autotune.engine.failure_context import host_evidence, with_context
from autotune.engine.failure_values import (
    Action,
    Advice,
    Cause,
    DecidingLine,
    Direction,
    Failure,
    FailureClass,
    FailureContext,
)
from autotune.engine.logscan import Match, Scanner, Unmatched
from autotune.engine.notices import is_harmless
from autotune.engine.redaction import redact
from autotune.engine.signatures import Tier
from autotune.engine.stages import Stage

__all__ = [
    "Action",
    "Advice",
    "Cause",
    "DecidingLine",
    "Direction",
    "Failure",
    "FailureClass",
    "FailureContext",
    "Stage",
    "Watcher",
    "classify",
    "read_log",
]

HEAD_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 8 * 1024 * 1024
SHORT_LINES = 200
"""Beyond so many lines without one of an engine, a harmless sentence says nothing about the log any more."""
SETTLE_LINES = 60
"""Lines after which a broad match is taken for final while the engine still runs."""


def classify(
    log: Iterable[str] | Path,
    *,
    phase: Stage | None = None,
    exit_code: int | None = None,
    context: FailureContext | None = None,
) -> Failure:
    """Say why the engine that wrote ``log`` failed.

    Args:
        log: its lines, or the file. Of a file larger than 12 MiB only the first 4 and the last 8 are read.
        phase: the stage the engine was in, where the caller knows; a traceback or the log itself overrules it.
        exit_code: of the API server; negative or above 128 for a signal. It proves nothing by itself: vLLM ends
            with 0 after the death of its engine core.
        context: what the caller knows besides.

    Returns:
        A failure of class `no_failure` where the log shows none, `unknown` where it shows one that nothing explains.

    Raises:
        OSError: the file cannot be read.
    """
    scanner = Scanner(stage=phase)
    harmless = False
    for raw in read_log(log) if isinstance(log, Path) else log:
        scanner.feed(raw)
        if not harmless and not scanner.recognised and scanner.lines <= SHORT_LINES:
            harmless = is_harmless(raw)
    return _conclude(scanner, exit_code, context or FailureContext(), says_something=harmless)


def read_log(path: Path) -> Iterator[str]:
    """Lines of a log file of any size; the middle of a huge one is left out. Undecodable bytes are replaced.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        size = about.st_size
        if not stat.S_ISREG(about.st_mode):  # a pipe, as in `autotune explain <(docker logs vllm)`
            yield from _lines(file, sys.maxsize)
            return
        if size <= HEAD_BYTES + TAIL_BYTES:
            yield from _lines(file, size)
            return
        yield from _lines(file, HEAD_BYTES)
        file.seek(size - TAIL_BYTES)
        yield from _lines(file, TAIL_BYTES)


def _lines(file: BinaryIO, limit: int) -> Iterator[str]:
    left = limit
    while left > 0 and (raw := file.readline(min(left, 1 << 20))):
        left -= len(raw)
        # A progress bar rewrites its line with carriage returns; the last state is what counts.
        yield raw.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]


class Watcher:
    """Gives an early verdict while the engine boots: on the line that decides, not on the time-out.

    Feed it every line. A root line ends the wait at once; a broad one after `SETTLE_LINES` more lines, because a
    better line may follow it. Where no line comes any more (a hanging engine), ask `settle`.
    """

    def __init__(self, context: FailureContext | None = None) -> None:
        self._scanner = Scanner()
        self._context = context or FailureContext()
        self._given: Failure | None = None
        self._broad_at: int | None = None

    @property
    def stage(self) -> Stage:
        """Where the engine is."""
        return self._scanner.stage

    @property
    def verdict(self) -> Failure | None:
        """The verdict, once there is one; it does not change any more."""
        return self._given

    def feed(self, raw: str) -> Failure | None:
        """Take in a line; the verdict when this line brings it, else None. At most one verdict ever comes."""
        if self._given is not None:
            return None
        early = [match for match in self._scanner.feed(raw) if match.signature.early]
        if any(match.signature.tier is Tier.ROOT for match in early):
            return self._give()
        if early and self._broad_at is None:
            self._broad_at = self._scanner.lines
        if self._broad_at is not None and self._scanner.lines - self._broad_at >= SETTLE_LINES:
            return self._give()
        return None

    def settle(self) -> Failure | None:
        """The verdict on what was read so far, for a caller that has seen no new line for some seconds.

        None while nothing decides. An exception of the engine that no signature knows decides too, as `unknown`,
        once the engine itself has said that it failed.
        """
        if self._given is not None:
            return None
        best = self._scanner.best()
        if best is not None and best.signature.tier < Tier.SECONDARY and best.signature.early:
            return self._give()
        dead = "engine_dead" in self._scanner.matches
        return self._give() if dead and self._scanner.unmatched is not None else None

    def _give(self) -> Failure:
        self._given = _conclude(self._scanner, None, self._context, says_something=True)
        return self._given


def _conclude(scanner: Scanner, exit_code: int | None, context: FailureContext, *, says_something: bool) -> Failure:
    failure = _from_log(scanner, exit_code, context, says_something)
    best = scanner.best()
    if best is not None and failure.signature_id == best.signature.id:
        failure = with_context(failure, best.groups, context)
    return host_evidence(failure, exit_code, context)


def _from_log(scanner: Scanner, exit_code: int | None, context: FailureContext, says_something: bool) -> Failure:
    best, unmatched = scanner.best(), scanner.unmatched
    if best is not None and best.signature.tier > Tier.UNMATCHED and unmatched is not None:
        symptom_first = best.signature.tier is Tier.SYMPTOM and best.line.number < unmatched.line.number
        if not symptom_first:
            best = None
    if best is not None:
        return _from_match(best, context)
    if unmatched is not None:
        return _from_exception(scanner)
    died = exit_code not in (None, 0) and not context.stopped_by_us and not scanner.shut_down
    if scanner.errors or died:
        lines = (scanner.first_error,) if scanner.first_error else scanner.tail[-3:]
        return Failure(
            FailureClass.UNKNOWN, Cause.UNKNOWN, Action.RETRY_ONCE, lines, _LOOK_AT_IT, (), "unknown", scanner.stage
        )
    if scanner.recognised or says_something:
        fine = FailureClass.NO_FAILURE
        return Failure(fine, Cause.UNKNOWN, Action.RETRY_ONCE, signature_id="none", stage=scanner.stage)
    return Failure(
        FailureClass.UNKNOWN,
        Cause.UNKNOWN,
        Action.RETRY_ONCE,
        advice=_SILENT,
        signature_id="silent",
        stage=scanner.stage,
    )


_LOOK_AT_IT = (
    Advice("", Direction.NONE, "No signature knows this: keep the log, run it once more, teach the search nothing."),
)
_SILENT = (
    Advice("", Direction.NONE, "The log holds no line of an engine: was it started, and does its output go here?"),
)


def _from_exception(scanner: Scanner) -> Failure:
    unmatched = scanner.unmatched
    assert unmatched is not None
    if not scanner.ready and (checked := _own_check(unmatched)) is not None:
        return checked
    return Failure(
        FailureClass.UNKNOWN,
        Cause.UNKNOWN,
        Action.RETRY_ONCE,
        (unmatched.line,),
        _LOOK_AT_IT,
        signature_id="unmatched_exception",
        stage=unmatched.stage,
    )


_CONFIG_SOURCES = ("/vllm/config/", "/vllm/engine/arg_utils.py", "/vllm/platforms/", "/vllm/transformers_utils/config")
_KERNEL_SOURCES = (
    *("/vllm/model_executor/layers/", "/vllm/model_executor/kernels/", "/vllm/v1/attention/", "/vllm/v1/core/"),
    *("/vllm/v1/worker/", "/vllm/v1/spec_decode/", "/vllm/distributed/", "/vllm/compilation/", "/vllm/lora/"),
)


def _own_check(unmatched: Unmatched) -> Failure | None:
    """An unknown sentence, but raised by one of vLLM's own checks while it boots: it will say the same every time."""
    in_config = any(part in unmatched.path for part in _CONFIG_SOURCES)
    in_kernel = any(part in unmatched.path for part in _KERNEL_SOURCES)
    check = unmatched.line.text.startswith(("ValueError", "NotImplementedError", "AssertionError"))
    if not in_config and not (in_kernel and check):
        return None
    where = "configuration" if in_config else "layers and kernels"
    text = f"A check in vLLM's {where} refuses this combination: {unmatched.line.text}"
    return Failure(
        FailureClass.CONFIG_VALIDATION if in_config else FailureClass.UNSUPPORTED_COMBINATION,
        Cause.CONFIG,
        Action.LEARN,
        (unmatched.line,),
        (Advice("", Direction.CHANGE, text),),
        signature_id="raised_in_config" if in_config else "raised_in_kernels",
        stage=unmatched.stage,
    )


def _from_match(match: Match, context: FailureContext) -> Failure:
    signature = match.signature
    fill = _Groups({name: redact(value) for name, value in match.groups.items()})
    if "parameter" in fill:
        fill["parameter"] = fill["parameter"].lstrip("-").replace("-", "_")
    if fill.get("model") in _NESTED:
        fill["field"] = _NESTED[fill["model"]]
    advice = tuple(_filled(item, fill) for item in signature.advice)
    quarantine = []
    for template in signature.quarantine:
        name = template.format_map(fill)
        # An argument may have been asked for in parts: `speculative_config.method` is one of speculative_config.
        parts = [asked for asked in context.requested if asked == name or asked.startswith(f"{name}.")]
        if parts:
            quarantine += [(part, context.requested[part]) for part in parts]
        elif len(signature.quarantine) == 1 and "?" not in name and "value" in fill:
            quarantine.append((name, fill["value"]))
    return Failure(
        signature.failure_class,
        signature.cause,
        signature.action,
        (match.line, *match.also),
        advice,
        tuple(quarantine),
        signature.id,
        match.stage,
    )


def _filled(item: Advice, groups: _Groups) -> Advice:
    parameter, value = item.parameter.format_map(groups), item.value.format_map(groups)
    return Advice(
        "" if "?" in parameter else parameter,
        item.direction,
        item.text.format_map(groups),
        "" if "?" in value else value,
    )


# A pydantic error names the field inside these; the argument that a study sets is the whole.
_NESTED = {
    "SpeculativeConfig": "speculative_config",
    "CompilationConfig": "compilation_config",
    "KVTransferConfig": "kv_transfer_config",
    "EPLBConfig": "eplb_config",
    "AttentionConfig": "attention_config",
}


class _Groups(dict[str, str]):
    """Named groups for filling in sentences; what the log did not say reads as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
