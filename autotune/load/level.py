"""One load level: open connections, warm up, measure the window, hand the records over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.errors import AutotuneError, EnvironmentFault
from autotune.load.client import LoadClient
from autotune.load.early import HopelessRule, Progress, breaks_slo
from autotune.load.enginewatch import EngineWatch
from autotune.load.metrics import Window, whole_waves
from autotune.load.records import Records, decode
from autotune.load.report import Level, Target
from autotune.load.steady import Observation, WarmUp
from autotune.load.turns import Turn
from autotune.load.waves import WaveWatch
from autotune.load.workload import RequestMaker
from autotune.spec.study import LoadSpec, SloSpec
from autotune.virtualtime import now

OPEN_CONNECTIONS = 64
"""Connections opened before an open loop begins; more are opened ahead of need."""
GAPS_OF_ALL = 64
"""Streams up to which every request's chunks are read one by one."""
GAP_STREAMS = 32
"""Streams of which they are where there are more. A read a chunk is nine tenths of the client's work, and the tokens of
all streams come from the same steps of the engine: the gaps of more streams tell the same again."""
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 256 * 2**20
FEED_SLICE = 32
"""Requests made between two looks at the clock."""
REFUSED_FOR = 5.0
"""Real seconds of nothing but failed connections after which the server counts as gone."""


class EngineDied(AutotuneError):
    """The engine ended under load."""


@dataclass(frozen=True)
class Watchers:
    """Who is asked and told while a level runs."""

    alive: Callable[[], str | None] | None = None
    on_progress: Callable[[Progress], None] | None = None
    hopeless: HopelessRule | None = None
    slos: Sequence[SloSpec] = ()


@dataclass(frozen=True)
class LevelResult:
    """What a level gave: records, the window, and how it came to its end."""

    records: Records
    window: Window
    steady: bool
    stopped: str | None
    finite: bool
    """All planned requests were sent (a trace, or a limit): the end of the run is a drain."""
    began: float
    """CLOCK_MONOTONIC second of time zero."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Counters at the begin of a phase."""

    at: float
    finished: int
    failed: int
    chunks: int
    sent: int


TELL_SECONDS = 2.0
"""Longest time that the clients get to tell what happened before the window."""
WAVES = 3
"""Whole waves that a closed window holds, at least. On one H200 at c=128 three waves of one engine had 5,452, 5,358 and
5,738 tok/s; the window that they lie in, with a piece of a fourth, 6,285 (see `metrics.whole_waves`)."""


class LevelRun:
    """Drives one level on one client.

    Args:
        drain: the window ends when every request of a finite plan has ended.
        required: requests that the window must hold; it goes on until it does, up to `window.max_duration`.
    """

    def __init__(
        self,
        client: LoadClient,
        target: Target,
        spec: LoadSpec,
        level: Level,
        turns: Iterator[Turn],
        maker: RequestMaker,
        watch: EngineWatch,
        watchers: Watchers,
        place: tuple[int, int] = (0, 1),
        *,
        drain: bool = False,
        required: int = 0,
    ) -> None:
        self.client, self.target, self.spec, self.level = client, target, spec, level
        self.turns, self.maker, self.watch, self.watchers, self.place = turns, maker, watch, watchers, place
        self.scale = target.time_scale
        self.closed = level.kind == "closed"
        self.drain = drain
        self.required = max(required, spec.window.requests or 0)
        self.tick = min(0.2, max(0.02, 0.2 / self.scale))
        self.began = 0.0
        self.exhausted = False
        self.duration = spec.window.duration
        if self.duration is None:
            self.duration = 0.0 if spec.window.requests else 20.0
        self.period = spec.burst * spec.turns / level.value if spec.arrivals == "bursts" else 0.0
        self.ttft: list[float] = []
        self._waves = WaveWatch(round(level.value), self.tick * self.scale)
        self._ahead: Turn | None = None

    async def run(self) -> LevelResult:
        """Measure the level.

        Raises:
            EngineDied: the engine ended, or nothing can connect to it.
            EnvironmentFault: a client process failed.
        """
        try:
            return await self._run()
        except BaseException:
            self.client.cancel()
            await self.watch.cancel()
            raise

    def _gap_share(self, slots: int) -> float:
        if self.spec.itl_share is not None:
            return self.spec.itl_share
        return GAP_STREAMS / slots if self.closed and slots > GAPS_OF_ALL else 1.0

    async def _run(self) -> LevelResult:
        slots = round(self.level.value) if self.closed else OPEN_CONNECTIONS
        opened, reason = await self.client.open(
            self.target,
            slots=slots,
            open_loop=not self.closed,
            timeout=self.spec.request_timeout / self.scale,
            tick=self.tick,
            gap_share=self._gap_share(slots),
        )
        self._check_alive()
        if opened < slots:
            raise (EngineDied if opened == 0 else EnvironmentFault)(
                f"only {opened} of {slots} connections to {self.target.url} could be opened: {reason}"
            )
        self._feed()
        self.began = self.client.go()
        steady, stopped = await self._warm_up()
        begin = await self._told_mark()
        self._waves.begin(begin.at, begin.finished)
        window = Window(begin.at, begin.at, by_plan=not self.closed)
        if stopped is None:
            window, stopped = await self._measure(begin)
        await self.watch.finish()
        records = decode(await self.client.stop(), self.scale)
        if self.closed and stopped is None and not (self.exhausted or self.drain):
            streams = round(self.level.value)
            whole = whole_waves(records, window, streams, self._waves.first)
            # The longest window may end within a wave, and only with its piece hold what is required.
            window = whole if (len(whole.waves) - 1) * streams >= self.required else window
        return LevelResult(records, window, steady, stopped, self.exhausted, self.began)

    # -- phases -------------------------------------------------------------------------------------------------

    async def _told_mark(self) -> _Mark:
        """Counters now, once the clients have told of everything until now: a busy host tells late.

        What ended before the window is then never counted in it.
        """
        at = self._now()
        deadline = now() + TELL_SECONDS
        while self.client.ticks and now() < deadline:
            told = min(tick.now for tick in self.client.ticks)
            if (told - self.began) * self.scale >= at:
                break
            await self._step()
        return replace(self._mark(), at=at)

    async def _warm_up(self) -> tuple[bool, str | None]:
        warm_up = WarmUp(self.spec.warmup, self.level, self.spec.turns)
        begin = _Mark(0.0, 0, 0, 0, 0)
        while True:
            await self._step()
            mark = self._mark()
            if reason := self._all_fail(begin, mark):
                return False, reason
            self._waves.note(mark.at, mark.finished)
            if warm_up.done(Observation(mark.at, mark.finished, mark.chunks, self._sum("inflight"))):
                return warm_up.steady, None
            self._tell("warmup", begin, mark)
            if self.exhausted and self._queued() == 0:
                return warm_up.steady, None

    async def _measure(self, begin: _Mark) -> tuple[Window, str | None]:
        self.client.take_first_tokens()
        self.ttft.clear()
        self.watch.start()
        end, stopped = 0.0, None
        while stopped is None:
            await self._step()
            mark = self._mark()
            stopped = self._all_fail(begin, mark)
            progress = self._tell("window", begin, mark)
            self._waves.note(mark.at, mark.finished)
            if self._window_over(begin, mark):
                end = begin.at + self._whole_bursts(mark.at - begin.at)
                stopped = stopped or self._too_slow(begin, mark)
                break
            if stopped is None and self.spec.stop_hopeless:
                stopped = breaks_slo(progress, self.watchers.slos)
            if stopped is None and self.watchers.hopeless is not None:
                stopped = self.watchers.hopeless(progress)
        end = end or self._now()
        if not self.closed and stopped is None:
            await self._drain(begin, end)
        return Window(begin.at, end, by_plan=not self.closed), stopped

    def _window_over(self, begin: _Mark, mark: _Mark) -> bool:
        elapsed = mark.at - begin.at
        if elapsed >= self.spec.window.max_duration:
            return True
        if self.exhausted and self._queued() == 0:
            return not (self.closed or self.drain) or self._sum("inflight") == 0
        if self.drain:
            return False
        assert self.duration is not None
        needed = self.required + self._late()
        if self.closed:
            return self._waves.over(self.duration, max(WAVES, math.ceil(needed / self.level.value)))
        return self._whole_bursts(elapsed) >= self.duration and mark.sent - begin.sent >= needed

    def _whole_bursts(self, seconds: float) -> float:
        """What of a window is from burst to burst: else its rate would depend on where the warm-up ended between two.

        A finite plan is measured to its end.
        """
        if not self.period or seconds < self.period or self.exhausted or self.drain:
            return seconds
        return math.floor(seconds / self.period + 1e-9) * self.period

    def _late(self) -> int:
        """Requests that are told of inside the window and do not count: they ended, or got their first token, before.

        Counts arrive by ticks and records by time. Of a stream's request that began before the window only the end
        counts, not its TTFT; so a percentile may need one more request per stream.
        """
        if not self.closed or not self.required:
            return 0
        asked = self.required == (self.spec.window.requests or 0)
        return max(2, math.ceil(self.level.value / 10)) if asked else math.ceil(self.level.value)

    def _too_slow(self, begin: _Mark, mark: _Mark) -> str | None:
        """A reason when the longest window did not hold the required requests: the engine's fault, not the client's."""
        limit = self.spec.window.max_duration
        if self.drain or self.exhausted or mark.at - begin.at < limit:  # whole waves may have begun before the window
            return None
        done = mark.finished - begin.finished if self.closed else mark.sent - begin.sent
        if done >= self.required:
            return None
        return f"too slow: {done} of {self.required} requests within window.max_duration ({limit:g} s)"

    async def _drain(self, begin: _Mark, end: float) -> None:
        """Keep up the load until every request that was planned inside the window has ended."""
        deadline = begin.at + self.spec.window.max_duration
        while self._now() < deadline:
            await self._step()
            self._tell("drain", begin, self._mark())
            oldest = min((tick.oldest for tick in self.client.ticks if tick.oldest > 0), default=float("inf"))
            fresh = min(tick.now for tick in self.client.ticks) if self.client.ticks else 0.0
            if (fresh - self.began) * self.scale >= end and (oldest - self.began) * self.scale >= end:
                return

    # -- the pieces ---------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return (now() - self.began) * self.scale

    def _sum(self, name: str) -> int:
        return sum(int(getattr(tick, name)) for tick in self.client.ticks)

    def _mark(self) -> _Mark:
        return _Mark(self._now(), self._sum("finished"), self._sum("failed"), self._sum("chunks"), self._sum("sent"))

    async def _step(self) -> None:
        await asyncio.sleep(self.tick / 2)
        self._feed()
        self._check_alive()

    def _check_alive(self) -> None:
        if self.watchers.alive is not None and (reason := self.watchers.alive()):
            raise EngineDied(reason)
        if self.client.dead:
            raise EnvironmentFault("a load client process ended by itself")

    def _feed(self) -> None:
        """Keep the client's queue filled: some waves (closed) or some seconds (open) ahead."""
        rate = self._sum("finished") / max(self._now(), 1e-9) * self.scale if self.began else 0.0
        goal = 4 * self.level.value if self.closed else 4 * self.level.value * self.scale
        goal = min(MAX_QUEUED, max(64.0, goal, 3 * rate))
        if self.maker.sent_bytes:  # requests with images are large; what runs next must be ready all the same
            mean = self.maker.sent_bytes / len(self.maker.prompt_lengths)
            goal = min(goal, max(MAX_QUEUED_BYTES / mean, 1.5 * self.level.value if self.closed else 8.0))
        missing = goal - self._queued()
        deadline = now() + 0.25
        while missing > 0 and not self.exhausted and (not self.began or now() < deadline):
            batch = self._take(FEED_SLICE)
            self.client.feed([self.maker.make(turn, self.scale) for turn in batch])
            missing -= len(batch)

    def _queued(self) -> int:
        """Requests made and not sent yet, as far as the client has told."""
        return len(self.maker.prompt_lengths) - self._sum("sent")

    def _take(self, size: int) -> list[Turn]:
        """The next turns of the plan, whole conversations at a time."""
        batch: list[Turn] = [self._ahead] if self._ahead is not None else []
        self._ahead = None
        for turn in self.turns:
            if len(batch) >= size and not turn.follows:
                self._ahead = turn
                return batch
            batch.append(turn)
        self.exhausted = True
        return batch

    def _all_fail(self, begin: _Mark, mark: _Mark) -> str | None:
        """A reason when nothing but errors comes back."""
        failed = mark.failed - begin.failed
        if mark.finished > begin.finished or failed < 10:
            return None
        error = next((tick.error for tick in self.client.ticks if tick.error), "unknown error")
        if error.startswith("cannot connect") and (mark.at - begin.at) / self.scale >= REFUSED_FOR:
            raise EngineDied(f"the server does not answer any more: {error}")
        # A closed loop repeats failed slots every 0.1 s; give a restarting proxy some time before giving up.
        if failed >= 2 * self.level.value and (mark.at - begin.at) / self.scale >= 2.0 and self._sum("inflight") == 0:
            return f"every request fails: {error}"
        return f"every request fails: {error}" if failed >= max(50, 4 * self.level.value) else None

    def _tell(self, phase: str, begin: _Mark, mark: _Mark) -> Progress:
        if phase == "window":
            self.ttft += [value * self.scale for value in self.client.take_first_tokens()]
        waits = [value * self.scale for tick in self.client.ticks for value in tick.waits]
        elapsed = mark.at - begin.at
        progress = Progress(
            index=self.place[0], levels=self.place[1], level=self.level, phase=phase,
            elapsed_s=elapsed, expected_s=self._expected(begin, mark),
            finished=mark.finished - begin.finished, failed=mark.failed - begin.failed,
            inflight=self._sum("inflight"),
            output_throughput=(mark.chunks - begin.chunks) / max(elapsed, 1e-9),
            ttft_s=(*self.ttft, *waits) if phase == "window" else (),
        )  # fmt: skip
        if self.watchers.on_progress is not None:
            self.watchers.on_progress(progress)
        return progress

    def _expected(self, begin: _Mark, mark: _Mark) -> float:
        """Expected length of the window in seconds."""
        duration = self.duration or 0.0
        wanted, done, elapsed = self.required, mark.finished - begin.finished, mark.at - begin.at
        if wanted and done:
            duration = max(duration, elapsed * wanted / done)
        elif wanted:
            duration = self.spec.window.max_duration
        return min(duration, self.spec.window.max_duration)
