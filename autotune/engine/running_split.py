"""`RunningSplit`: the engines of a trial and their router, as one `RunningEngine`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.engine.failure_values import Advice, DecidingLine, Failure
from autotune.engine.prometheus import by_engine, summed
from autotune.engine.protocol import Phase, Resolved, RunningEngine, StartFailure, StopReport
from autotune.engine.routing import RunningRouter
from autotune.engine.stopping import StopOnce
from autotune.engine.watchdog import GENERATED
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.topology import Member, trial_name


@dataclass(frozen=True)
class Started:
    """One engine of the trial."""

    member: Member
    engine: RunningEngine


class RunningSplit:
    """See `RunningEngine`. The death of one engine or of the router is the death of all.

    Args:
        config: of the trial.
        members: the engines, prefill engines first.
        router: before them.
        hands_on: a prefill engine passes its KV cache on; the one token that it writes for a prompt is nobody's answer.
        give_back: called once when nothing of them is left.
    """

    def __init__(
        self,
        config: EngineConfig,
        members: Sequence[Started],
        router: RunningRouter,
        give_back: Callable[[], None],
        *,
        hands_on: bool = False,
    ) -> None:
        self._config = config
        self.members = tuple(members)
        self.router = router
        self._give_back = give_back
        self._hands_on = hands_on
        self._end = StopOnce(self._stop)
        self._stopping = False
        self._shown: Path | None = None
        self._show(self.log)

    @property
    def url(self) -> str:
        return self.router.url

    @property
    def api_key(self) -> str:
        return self.router.api_key

    @property
    def served_model(self) -> str:
        return self.members[-1].engine.served_model

    @property
    def time_scale(self) -> float:
        return self.members[-1].engine.time_scale

    @property
    def resolved(self) -> Resolved:
        """Values of the last engine (decode, or a replica); what does not fit, of every engine by its name."""
        parts = [(item.member.name, item.engine.resolved) for item in self.members]
        last = parts[-1][1]
        return replace(
            last,
            mismatches=tuple(f"{name}: {text}" for name, part in parts for text in part.mismatches),
            notes=tuple(dict.fromkeys(text for _, part in parts for text in part.notes)),
            kv_cache_tokens=sum(part.kv_cache_tokens for _, part in parts),
        )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Of the engine that took longest: the others waited for it."""
        return max((item.engine.phases for item in self.members), key=lambda found: sum(one.seconds for one in found))

    @property
    def log(self) -> Path | None:
        """Of the last engine; those of the others lie beside it, in folders of their names."""
        return self.members[-1].engine.log

    def failure(self) -> Failure | None:
        """See `RunningEngine.failure`."""
        for item in self.members:
            failure = item.engine.failure()
            if failure is not None:
                self._show(item.engine.log)
                return _in_trial_words(failure, item.member, self._config)
        return None if self._stopping else self.router.failure()

    def _show(self, log: Path | None) -> None:
        if log is not None and log != self._shown:
            self._shown = log
            show_log(log)

    def processes(self) -> tuple[int, ...]:
        return (*(pid for item in self.members for pid in item.engine.processes()), *self.router.processes())

    async def metrics(self) -> dict[str, float]:
        """Sums over all engines, and each engine's own figures under its name (see `prometheus.by_engine`).

        The sum of generated tokens is what clients get.
        """
        found = await asyncio.gather(*(item.engine.metrics() for item in self.members))
        if not all(found):
            return {}
        names = [item.member.name for item in self.members]
        total = summed(found)
        if self._hands_on and GENERATED in total:
            total[GENERATED] -= sum(
                values.get(GENERATED, 0.0)
                for item, values in zip(self.members, found, strict=True)
                if item.member.role == "prefill"
            )
        return total | by_engine(dict(zip(names, found, strict=True)))

    async def reset_caches(self) -> bool:
        return await self.router.reset_caches()

    async def reconfigure(self, live: Mapping[str, FrozenValue]) -> bool:
        """Nothing can be changed: every difference starts the engines anew."""
        return False

    async def stop(self) -> StopReport:
        """See `RunningEngine.stop`."""
        return await self._end()

    async def _stop(self) -> StopReport:
        began = time.monotonic()
        self.failure()
        self._stopping = True
        ended = await self.router.stop()
        reports = await asyncio.gather(*(item.engine.stop() for item in self.members))
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._give_back)
        return StopReport(
            time.monotonic() - began,
            ended.killed or any(report.killed for report in reports),
            (*ended.leftovers, *(text for report in reports for text in report.leftovers)),
        )


def show_log(log: Path) -> None:
    """Let `engine.log` in the trial's folder be the log of that engine: reports and people look there."""
    link = log.parent.parent / "engine.log"
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(log.relative_to(link.parent))


def in_trial_words(failed: StartFailure, member: Member, config: EngineConfig) -> StartFailure:
    """A failure of one engine as the trial's own: it says which engine, and names settings as the trial does."""
    return replace(failed, failure=_in_trial_words(failed.failure, member, config))


def _in_trial_words(failure: Failure, member: Member, config: EngineConfig) -> Failure:
    def named(name: str) -> str:
        return trial_name(config, member.role, name) if name else name

    first = replace(failure.lines[0], text=f"{member.name}: {failure.lines[0].text}") if failure.lines else None
    said = f"{member.name}: {failure.failure_class.value.replace('_', ' ')}"
    return replace(
        failure,
        lines=(first or DecidingLine(0, said), *failure.lines[1:]),
        advice=tuple(_renamed(item, named) for item in failure.advice),
        quarantine=tuple((named(name), value) for name, value in failure.quarantine),
    )


def _renamed(advice: Advice, named: Callable[[str], str]) -> Advice:
    return advice if advice.parameter.startswith("env.") else replace(advice, parameter=named(advice.parameter))
