"""A year of Sundays in seconds: upgrades, a traffic shift, a sick card, noise, and kill -9 wherever it can hit."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from autotune.retune.deploy import Deployment
from autotune.retune.ledger import PassEnded, SwitchEnded
from autotune.retune.onepass import Call, Pass
from autotune.retune.promotion import Switch
from autotune.retune.schedule import Schedule
from autotune.retune.service import Service, first_start, in_window
from autotune.retune.state import State
from autotune.retune.verdict import Ending
from autotune.spec.retune import RetuneSpec
from autotune.testing.retune_world import Era, FakeClock, FakeHooks, FakeTuner, Killed, Killer, MemoryLedger

BERLIN = ZoneInfo("Europe/Berlin")
SPEC = RetuneSpec.model_validate(
    {
        "cron": "0 3 * * 0",
        "timezone": "Europe/Berlin",
        "windows": [{"days": ["sun"], "opens": "02:00", "closes": "08:00"}],
        "jitter": 900,
        "triggers": {"metrics_url": "http://127.0.0.1:1"},
    }
)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


BEGIN, END = moment("2026-01-01"), moment("2027-01-01")
UPGRADE, SHIFT, SICK, WELL, ILLEGAL = map(
    moment, ("2026-03-10", "2026-05-30", "2026-07-30", "2026-09-01", "2026-10-20")
)


def era(now: float) -> Era:
    """The truth. A mode that is missing cannot serve."""
    if now < UPGRADE:
        return Era("0.26.0", 400, {"base": 100, "a": 120, "b": 110, "c": 90})
    if now < SHIFT:
        return Era("0.28.0", 400, {"base": 95, "a": 100, "b": 112, "c": 90})  # slower, and another one is best now
    scores = {"base": 60, "a": 62, "b": 64, "c": 75}
    if now < ILLEGAL:
        return Era("0.28.0", 1600, scores, speed=0.85 if SICK <= now < WELL else 1.0)
    return Era("0.32.0", 1600, {"base": 61, "a": 66, "b": 70})  # c is refused


@dataclass
class World:
    """What survives a kill: ledger, disk, clock and the studies on the disk."""

    folder: Path
    ledger: MemoryLedger
    tuner: FakeTuner
    clock: FakeClock
    hooks: FakeHooks
    said: list[str]

    @classmethod
    def new(cls, folder: Path, chance: float = 0.0, seed: int = 1) -> World:
        killer = Killer(chance, random.Random(seed))
        clock = FakeClock(BEGIN, killer)
        tuner = FakeTuner(clock, era, killer=killer, draws=random.Random(seed + 1))
        return cls(folder, MemoryLedger(killer=killer), tuner, clock, FakeHooks(killer=killer), [])

    @property
    def deployment(self) -> Deployment:
        return Deployment(self.folder / "deploy", "study")

    def switch(self) -> Switch:
        return Switch("study", self.ledger, self.deployment, self.hooks, self.clock.now)

    async def one(self, call: Call) -> Ending:
        return await Pass(SPEC, self.tuner, self.ledger, self.switch(), self.clock.now).run(call)

    def service(self) -> Service:
        schedule = Schedule.of(SPEC, "study@host")

        async def run(call: Call) -> Ending:
            assert in_window(schedule, self.clock.now())
            ending = await self.one(call)
            assert self.clock.now() <= call.deadline
            return ending

        begin = partial(first_start, self.ledger)
        return Service(schedule, SPEC.budget.time, self.clock, run, begin, self.said.append)

    def live(self) -> None:
        """A year, started again two minutes after every kill, as systemd does."""
        while True:
            try:
                asyncio.run(self.service().serve(END))
                return
            except Killed:
                assert self.deployed() in (None, "base", "a", "b", "c")  # old or new, never half of it
                self.clock.time += 120

    def deployed(self) -> str | None:
        file = self.deployment.path / "vllm.yaml"
        return file.read_text().removeprefix("mode: ").strip() if file.exists() else None

    @property
    def state(self) -> State:
        return State.of(self.ledger.entries())

    @property
    def passes(self) -> list[PassEnded]:
        return [entry for entry in self.ledger.entries() if isinstance(entry, PassEnded)]


def promotions(world: World) -> list[tuple[str, str, float]]:
    """(from, to, when), the first version left out."""
    current, found = 0, []
    for entry in world.ledger.entries():
        if isinstance(entry, SwitchEnded) and entry.current != current:
            if current:
                names = [str(dict(v.args).get("mode", "base")) for n in (current, entry.current)
                         if (v := world.state.version(n)) is not None]  # fmt: skip
                found.append((names[0], names[1], entry.at))
            current = entry.current
    return found


EXPLAINED: dict[str, tuple[str, ...]] = {
    "nothing": ("fingerprint: vLLM, model, driver", "workload: ", "canary: ", "nothing triggered"),
    "promoted": (" is deployed at ",),
    "kept": ("the incumbent stays: ",),
    "alert": ("twice in a row", "the machine is slower, not the configuration"),
    "gave way": ("the next pass goes on",),
}
"""What a pass of each kind has to say; any other kind would be a surprise in this year."""


def assert_a_good_year(world: World) -> None:
    sundays = {f"{BEGIN_LOCAL + timedelta(days=n):%Y-%m-%d}" for n in range(365)
               if (BEGIN_LOCAL + timedelta(days=n)).weekday() == 6}  # fmt: skip
    fires = {f"{datetime.fromtimestamp(one.fire, BERLIN):%Y-%m-%d}" for one in world.passes}
    assert fires == sundays  # no missed window, both changes of the clock included (29 March, 25 October)
    assert all(f"{datetime.fromtimestamp(one.fire, BERLIN):%H:%M}" == "03:00" for one in world.passes)
    for before, after, when in promotions(world):
        truth = era(when).scores
        assert truth[after] > truth.get(before, 0.0), f"{before} to {after} was a false promotion"
    assert [(a, b) for a, b, _ in promotions(world)] == [("a", "b"), ("b", "c"), ("c", "b")]
    for one in world.passes:
        missing = [words for words in EXPLAINED[one.verdict] if words not in "; ".join(one.reasons)]
        assert not missing, (one, missing)
    assert world.tuner.engines == 0
    left = [path.name for path in world.folder.rglob("*") if "partial" in path.name]
    assert left == []
    assert world.deployed() == "b"
    assert world.state.switch is None and world.state.pending is None and world.state.tuning is None


BEGIN_LOCAL = datetime(2026, 1, 1, tzinfo=BERLIN)


def test_a_year_is_decided_right_and_every_decision_is_explained(tmp_path: Path) -> None:
    world = World.new(tmp_path)
    world.live()
    assert_a_good_year(world)
    by_verdict = {name: [one for one in world.passes if one.verdict == name] for name in ("promoted", "alert", "kept")}
    tuned, sick = by_verdict["promoted"], by_verdict["alert"]
    texts = ["; ".join(one.reasons) for one in tuned]
    assert ["engine was 0.26.0 and is 0.28.0" in texts[0], "prompt lengths have moved" in texts[1]] == [True, True]
    assert "cannot serve any more" in texts[2] and "0.28.0 and is 0.32.0" in texts[2]
    assert sick and all(SICK <= one.at < WELL for one in sick)
    assert "the machine is slower, not the configuration" in sick[0].reasons[-1]
    quiet = [one for one in world.passes if one.verdict == "nothing"]
    assert len(quiet) >= 40
    assert max(one.at - one.began for one in quiet) < 3600


@pytest.mark.parametrize("seed", range(6))
def test_kills_at_random_places_change_nothing_of_it(tmp_path: Path, seed: int) -> None:
    world = World.new(tmp_path, chance=0.02, seed=100 + seed)
    world.live()
    assert world.tuner.killer.kills
    assert_a_good_year(world)


def test_noise_alone_promotes_nothing(tmp_path: Path) -> None:
    """Every configuration is equally good, measured with 3 % noise, and each pass is made to tune."""
    world = World.new(tmp_path)
    world.tuner.era = lambda now: Era("0.26.0", 400, {"base": 100, "a": 100, "b": 100, "c": 100})
    world.tuner.noise = 0.03
    for number in range(60):
        asyncio.run(world.one(Call(BEGIN + number, world.clock.now() + 36000, force=True)))
    assert promotions(world) == []
    assert {one.verdict for one in world.passes} == {"kept"}
