"""A world for re-tuning that runs in no time: a truth that changes, noisy measurements, a clock, and kills."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.retune.hooks import HookEvent, Moment
from autotune.retune.ledger import Bin, Entry, Pairs, Profile, Reading, Tuning, entry_from_json, entry_json
from autotune.retune.promotion import Tuned
from autotune.retune.tuner import Adopted, CanaryResult, GiveWay, Sight
from autotune.search.paired import Gain as LogGain
from autotune.search.paired import compare
from autotune.space.config import EngineConfig

LABEL = "output_throughput"
ROUNDS = 5


class Killed(BaseException):
    """kill -9: nothing after it runs, not even an `except Exception`."""


@dataclass
class Killer:
    """Kills at a chance per place where the real thing could be killed.

    Attributes:
        chance: per place.
        kills: where it happened.
    """

    chance: float = 0.0
    draws: random.Random = field(default_factory=lambda: random.Random(7))
    kills: list[str] = field(default_factory=list)

    def maybe(self, place: str) -> None:
        """Raise `Killed`, or not."""
        if self.draws.random() < self.chance:
            self.kills.append(place)
            raise Killed(place)


@dataclass
class FakeClock:
    """A clock that jumps."""

    time: float
    killer: Killer = field(default_factory=Killer)

    def now(self) -> float:
        return self.time

    async def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


@dataclass
class MemoryLedger:
    """A ledger in memory; what was added survives a kill."""

    kept: list[Entry] = field(default_factory=list)
    killer: Killer = field(default_factory=Killer)

    def add(self, entry: Entry) -> None:
        self.killer.maybe(f"before {entry.kind}")
        assert entry_from_json(entry_json(entry)) == entry, "what is kept reads back"
        self.kept.append(entry)
        self.killer.maybe(f"after {entry.kind}")

    def entries(self) -> Sequence[Entry]:
        return tuple(self.kept)


@dataclass
class FakeHooks:
    """Hooks that remember, fail on demand, and may be killed."""

    fail: Callable[[Moment, HookEvent], bool] = lambda moment, event: False
    killer: Killer = field(default_factory=Killer)
    called: list[tuple[Moment, HookEvent]] = field(default_factory=list)

    async def run(self, moment: Moment, event: HookEvent, at: float) -> str | None:
        self.killer.maybe(f"{moment} hook")
        self.called.append((moment, event))
        return f"hooks.{moment}[0] (reload) ended with code 1" if self.fail(moment, event) else None

    def plan(self) -> tuple[str, ...]:
        return ("after the change it would run reload",)


@dataclass(frozen=True)
class Era:
    """A stretch of truth.

    Attributes:
        scores: tokens per second by mode; a mode that is missing cannot serve.
        speed: of the machine; below 1 it throttles.
    """

    engine: str
    mean_input: float
    scores: Mapping[str, float]
    speed: float = 1.0


def mode(config: EngineConfig) -> str:
    """The one setting of this world."""
    return str(config.get("mode", "base"))


def config_of(name: str) -> EngineConfig:
    """Its inverse."""
    return EngineConfig.of({} if name == "base" else {"mode": name})


@dataclass
class FakeTuner:
    """Measures the truth with noise; a tuning takes hours of the clock and goes on where it was killed.

    Attributes:
        era: the present truth, by the clock.
        noise: relative standard deviation of one measurement.
        run_s: seconds of one measurement.
        interrupted: called before every measurement with what is finished so far; may raise.
        engines: started and not stopped; 0 whenever nothing runs.
    """

    clock: FakeClock
    era: Callable[[float], Era]
    noise: float = 0.015
    run_s: float = 300.0
    killer: Killer = field(default_factory=Killer)
    draws: random.Random = field(default_factory=lambda: random.Random(1))
    interrupted: Callable[[int], None] = lambda done: None
    busy: tuple[str, ...] = ()
    engines: int = 0
    finished: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    async def adopt(self) -> Adopted:
        return Adopted(config_of("a"), ((LABEL, 1.2, 1.17, 1.23),), "x1.2", "", "study", self._fingerprint())

    async def look(self, before: Reading | None) -> Sight:
        mean = self._now().mean_input
        inputs = tuple(
            Bin(low, high, 200.0 + self.draws.uniform(-9, 9))
            for low, high in ((0, mean / 2), (mean / 2, mean), (mean, 2 * mean))
        )
        return Sight(self._fingerprint(), Profile(inputs, (Bin(0, 128, 600),), 600))

    def gpus(self) -> int:
        return 1

    async def obstacles(self) -> Sequence[str]:
        return self.busy

    async def canary(self, incumbent: EngineConfig, number: int, seconds: float) -> CanaryResult:
        ends = self.clock.time + seconds
        found: dict[str, list[float]] = {"base": [], mode(incumbent): []}
        for _ in range(3):
            for name in found:
                value = self._measure(name, ends)
                if value is None:
                    return CanaryResult((), (), 0.1, f"{name} is no known mode in vLLM {self._now().engine}")
                found[name].append(value)
        return CanaryResult(tuple(found[mode(incumbent)]), tuple(found["base"]), 0.5)

    async def tune(self, tuning: Tuning, incumbent: EngineConfig, seconds: float) -> Tuned:
        ends = self.clock.time + seconds
        done = self.finished.setdefault(tuning.folder, [])
        era = self._now()
        if mode(incumbent) not in era.scores:
            return Tuned(incumbent, False, (), "", "", tuning.folder, 0.1, f"unknown mode {mode(incumbent)}")
        names = [mode(incumbent), *(name for name in era.scores if name != mode(incumbent))]
        plan = [name for _ in range(ROUNDS) for name in names]
        before = len(done)
        while len(done) < len(plan):
            self.interrupted(len(done))
            try:
                value = self._measure(plan[len(done)], ends)
            except GiveWay as given:
                raise GiveWay(given.reason, (len(done) - before) * self.run_s / 3600) from None
            assert value is not None
            done.append((plan[len(done)], value))
        return self._result(tuning, incumbent, done)

    def _result(self, tuning: Tuning, incumbent: EngineConfig, done: Sequence[tuple[str, float]]) -> Tuned:
        by_name: dict[str, list[float]] = {}
        for name, value in done:
            by_name.setdefault(name, []).append(value)
        control = by_name.pop(mode(incumbent))
        gains = {
            name: [LogGain(math.log(value / base)) for value, base in zip(values, control, strict=True)]
            for name, values in by_name.items()
        }
        ratios = compare(gains, LABEL, error=0.05, comparisons=len(gains))
        best = max(ratios, key=lambda name: ratios[name].value)
        found, cost = ratios[best], len(done) * self.run_s / 3600
        if found.low <= 1.02:
            return Tuned(incumbent, False, (), "nothing was proven to be better", "", tuning.folder, cost)
        gain = (LABEL, found.value, found.low, found.high)
        return Tuned(config_of(best), True, (gain,), f"better: {found}", "passed", tuning.folder, cost)

    def spent(self, tuning: Tuning) -> float:
        return len(self.finished.get(tuning.folder, ())) * self.run_s / 3600

    def folder(self, number: int) -> str:
        return f"retune/{number:04d}"

    def baseline(self) -> EngineConfig:
        return config_of("base")

    async def render(self, tuned: Tuned) -> tuple[tuple[str, str], ...]:
        return (("vllm.yaml", f"mode: {mode(tuned.config)}\n"),)

    async def render_adopted(self, adopted: Adopted) -> tuple[tuple[str, str], ...]:
        return (("vllm.yaml", f"mode: {mode(adopted.config)}\n"),)

    def _now(self) -> Era:
        return self.era(self.clock.time)

    def _fingerprint(self) -> Pairs:
        return (("engine", self._now().engine), ("gpu", "H200"))

    def _measure(self, name: str, ends: float) -> float | None:
        if self.clock.time + self.run_s > ends:
            raise GiveWay("the window closes", 0.1)
        self.engines += 1
        try:
            self.clock.time += self.run_s
            self.killer.maybe(f"measuring {name}")
            era = self._now()
            score = era.scores.get(name)
            return None if score is None else score * era.speed * self.draws.gauss(1, self.noise)
        finally:
            self.engines -= 1
