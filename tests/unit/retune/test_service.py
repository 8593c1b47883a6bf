"""The service: clocks that are set, machines that sleep, and two of them at once."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.errors import Busy
from autotune.retune import session as session_module
from autotune.retune.ledger import Approval, PassEnded, Scheduled, SwitchBegan, Version
from autotune.retune.onepass import Call
from autotune.retune.schedule import Schedule
from autotune.retune.service import Service, first_start
from autotune.retune.session import Session, approval_file, opened
from autotune.retune.state import State
from autotune.retune.verdict import Ending, Verdict
from autotune.spec.retune import RetuneSpec
from autotune.study import Study, open_study
from autotune.testing.retune_world import MemoryLedger

STUDY = """\
name: s
model: llama-3.1-8b
engine: {kind: simulated}
space: {parameters: {max_num_seqs: {ladder: [32, 64]}}}
retune: {cron: "0 3 * * *", metrics_file: s.prom}
"""


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@dataclass
class SetClock:
    """A clock that is set: what it shows after each sleep, else the time that was waited for."""

    time: float
    shows: list[float] = field(default_factory=list)
    ends: float = math.inf

    def now(self) -> float:
        return self.time

    async def sleep_until(self, moment: float) -> None:
        if not self.shows and moment > self.ends:
            raise asyncio.CancelledError
        self.time = self.shows.pop(0) if self.shows else max(self.time, moment)


async def served(clock: SetClock, ends: str, **keys: object) -> list[str]:
    """When passes ran."""
    ledger, ran = MemoryLedger(), []

    async def run(call: Call) -> Ending:
        ran.append(f"{datetime.fromtimestamp(clock.time, UTC):%d %H:%M}")
        ledger.add(PassEnded(call.fire, clock.time, clock.time, "nothing", ("why",), 0.0, 1))
        return Ending(Verdict.NOTHING, ("why",))

    schedule = Schedule.of(RetuneSpec.model_validate({"cron": "0 3 * * *", **keys}), "s@host")
    service = Service(schedule, 3600, clock, run, lambda now: first_start(ledger, now), lambda text: None)
    clock.ends = at(ends)
    with pytest.raises(asyncio.CancelledError):
        await service.serve()
    return ran


async def test_a_machine_that_slept_through_its_window_waits_for_the_next_one() -> None:
    clock = SetClock(at("2026-06-01T12:00"), [at("2026-06-02T10:00")])
    windows = [{"opens": "02:00", "closes": "06:00"}]
    assert await served(clock, "2026-06-04T12:00", windows=windows) == ["03 03:00", "04 03:00"]


async def test_a_start_that_comes_as_the_window_has_closed_waits_for_the_next_one() -> None:
    clock = SetClock(at("2026-06-01T12:00"), [at("2026-06-02T03:04")])  # four minutes late, the window shut at 03:02
    windows = [{"opens": "02:00", "closes": "03:02"}]
    assert await served(clock, "2026-06-03T12:00", windows=windows) == ["03 03:00"]


async def test_without_windows_it_catches_up_as_it_wakes() -> None:
    clock = SetClock(at("2026-06-01T12:00"), [at("2026-06-04T10:00")])
    assert await served(clock, "2026-06-05T12:00") == ["04 10:00", "05 03:00"]


async def test_a_clock_that_is_set_back_while_it_waits_is_looked_at_again() -> None:
    clock = SetClock(at("2036-01-01T12:00"), [at("2026-06-01T12:00")])  # it was ten years ahead
    assert await served(clock, "2026-06-03T12:00") == ["02 03:00", "03 03:00"]


async def test_a_pass_at_a_wrong_time_does_not_keep_the_schedule_still() -> None:
    ledger = MemoryLedger()
    now = at("2026-06-02T12:00")
    for entry in (Scheduled(at("2026-06-01T12:00")), PassEnded(at("2036-01-01"), 0.0, 0.0, "nothing", ("w",), 0.0, 1)):
        ledger.add(entry)
    assert first_start(ledger, now) == at("2026-06-01T12:00")
    assert State.of(ledger.entries()).handled(at("2036-02-01")) == at("2036-01-01")


# -- one study, with its database ------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    (tmp_path / "s.yaml").write_text(STUDY)
    made = open_study(tmp_path / "s.yaml")
    store = made.store()
    store.open(made.spec.model_dump_json(), "")
    store.close()
    return made


def version(number: int) -> Version:
    return Version(number, (), (), number - 1, "study", 1.0, f"claim {number}", files=(("s.yaml", f"{number}\n"),))


async def two_versions(session: Session) -> None:
    for number in (1, 2):
        session.ledger.add(version(number))
        await session.switch.to(version(number), "promote", "test")


async def test_a_scheduled_pass_that_another_service_has_run_is_not_run_twice(study: Study) -> None:
    with opened(study) as session:
        fire = session.now()
        session.ledger.add(PassEnded(fire, fire, fire, "kept", ("why",), 0.0, 1))
        ending = await session.run_scheduled(Call(fire, fire + 600), lambda text: None)
    assert ending.verdict is Verdict.NOTHING and "another service" in ending.reasons[0]


async def test_a_scheduled_pass_waits_for_its_turn_and_a_called_one_does_not(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "TURN_S", 0.02)
    said: list[str] = []
    with opened(study) as session:
        with study.locked():
            ending = await session.run_now()
            assert ending.verdict is Verdict.BLOCKED and "is being run by another process" in ending.reasons[0]
            assert [one.verdict for one in session.state.passes] == ["blocked"]
        lock = study.locked()
        lock.__enter__()

        def release(text: str) -> None:
            said.append(text)
            lock.__exit__(None, None, None)
            session.ledger.add(PassEnded(session.now() + 1, 0.0, 0.0, "kept", ("why",), 0.0, 1))

        ending = await session.run_scheduled(Call(session.now(), session.now() + 600), release)
    assert ending.verdict is Verdict.NOTHING and len(said) == 1 and "waiting for it" in said[0]


async def test_a_change_that_was_killed_is_undone_without_a_pass(study: Study) -> None:
    with opened(study) as session:
        await two_versions(session)
        session.ledger.add(SwitchBegan(2, 1, 1.0, "asked for", "rollback"))
        session.switch.deployment.install(version(1))
        reasons = await session.recover()
        assert "version 2 is deployed again" in reasons[0] and await session.recover() == ()
    home = study.path.parent
    assert (home / "deploy/current/s.yaml").read_text() == "2\n"
    assert 'version{study="s"} 2' in (home / "s.prom").read_text()


async def test_a_dry_run_uses_up_no_approval_and_writes_no_metrics(study: Study) -> None:
    with opened(study) as session:
        await two_versions(session)
        session.ledger.add(version(3))
        approval_file(study, 3).parent.mkdir(parents=True, exist_ok=True)
        approval_file(study, 3).touch()
        before = session.ledger.entries()
        ending = await session.run_now(dry_run=True)
        assert ending.verdict is Verdict.DRY and approval_file(study, 3).exists()
        assert session.ledger.entries() == before and not (study.path.parent / "s.prom").exists()
        ending = await session.run_now()
        assert ending.verdict is Verdict.PROMOTED and not approval_file(study, 3).exists()
        assert any(isinstance(one, Approval) and one.by == "file approve-0003" for one in session.ledger.entries())


async def test_rolling_back_twice_goes_further_back_and_then_ends(study: Study) -> None:
    with opened(study) as session:
        await two_versions(session)
        session.ledger.add(version(3))
        await session.switch.to(version(3), "promote", "test")
        for number in (2, 1):
            _, restored = await session.roll_back(None)
            assert restored and session.state.current == number
        with pytest.raises(Exception, match="no version before"):
            await session.roll_back(None)
        ending, _ = await session.roll_back(1)
        assert ending.verdict is Verdict.NOTHING
        (study.path.parent / "deploy/current/s.yaml").write_text("by hand\n")
        ending, restored = await session.roll_back(1)  # what is deployed is no version any more
        assert restored and "edited by hand is kept" in ending.reasons[-1]
        assert (study.path.parent / "deploy/current/s.yaml").read_text() == "1\n"


def test_passes_of_studies_that_share_a_gpu_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    studies = {}
    for name, devices in (("a", "[0, 1]"), ("b", "[1, 2]"), ("c", "[3]")):
        text = STUDY.replace("name: s", f"name: {name}").replace("{kind: simulated}", "{kind: vllm}")
        (tmp_path / f"{name}.yaml").write_text(f"{text}hardware: {{devices: {devices}}}\n")
        studies[name] = open_study(tmp_path / f"{name}.yaml")
        store = studies[name].store()
        store.open(studies[name].spec.model_dump_json(), "")
        store.close()
    with opened(studies["a"]) as first, opened(studies["b"]) as second, opened(studies["c"]) as third:
        with first.locked():
            with third.locked():
                pass
            with pytest.raises(Busy, match="another pass is using gpu-1"), second.locked():
                pass
        with second.locked():
            pass
