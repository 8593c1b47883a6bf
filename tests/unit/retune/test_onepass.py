"""What a pass decides when things are not as they should be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from autotune.retune.deploy import Deployment
from autotune.retune.hooks import HookEvent, Moment
from autotune.retune.ledger import Approval, Canary, PassEnded, Reference, SwitchBegan, Tuning
from autotune.retune.metrics import metrics_text, served, write_metrics
from autotune.retune.onepass import Call, Pass
from autotune.retune.promotion import Switch
from autotune.retune.schedule import Schedule
from autotune.retune.service import Service, first_start
from autotune.retune.state import State
from autotune.retune.timeline import rows, write_plot
from autotune.retune.tuner import CanaryResult
from autotune.retune.verdict import Ending, Verdict
from autotune.space.config import EngineConfig
from autotune.spec.retune import RetuneSpec
from autotune.testing.retune_world import Era, FakeClock, FakeHooks, FakeTuner, Killed, MemoryLedger

OLD = Era("0.26.0", 400, {"base": 100, "a": 120, "b": 110})
NEW = Era("0.32.0", 400, {"base": 100, "a": 102, "b": 140})


@dataclass
class Bench:
    """A pass over a world whose truth the test sets."""

    folder: Path
    era: Era = OLD
    spec: RetuneSpec = field(default_factory=RetuneSpec)
    hooks: FakeHooks = field(default_factory=FakeHooks)

    def __post_init__(self) -> None:
        self.ledger, self.clock = MemoryLedger(), FakeClock(1e9)
        self.tuner = FakeTuner(self.clock, lambda now: self.era)

    async def run(self, *, seconds: float = 36_000, dry_run: bool = False, force: bool = False) -> Ending:
        call = Call(self.clock.now(), self.clock.now() + seconds, dry_run, force)
        self.clock.time += 1
        return await Pass(self.spec, self.tuner, self.ledger, self.switch, self.clock.now).run(call)

    @property
    def switch(self) -> Switch:
        return Switch("study", self.ledger, Deployment(self.folder / "deploy", "study"), self.hooks, self.clock.now)

    @property
    def state(self) -> State:
        return State.of(self.ledger.entries())

    @property
    def text(self) -> str:
        return (self.folder / "deploy/current/vllm.yaml").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_what_runs_already_is_taken_over_without_hooks_and_can_be_restored(bench: Bench) -> None:
    ending = await bench.run()
    assert bench.hooks.called == [] and bench.text == "mode: a\n"
    assert "what the study recommended is version 1" in ending.reasons[0]


async def test_files_that_are_there_already_stay_and_are_the_first_version(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "deploy" / "mine").mkdir(parents=True)
    (tmp_path / "deploy" / "mine" / "vllm.yaml").write_text("# by hand\nmode: a\n")
    (tmp_path / "deploy" / "current").symlink_to("mine")
    await bench.run()
    assert bench.text == "# by hand\nmode: a\n"
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.PROMOTED
    first = bench.state.version(1)
    assert bench.text == "mode: b\n" and first is not None and first.files == (("vllm.yaml", "# by hand\nmode: a\n"),)


async def test_a_dry_run_says_what_it_would_do_and_does_nothing(bench: Bench) -> None:
    await bench.run()
    before = bench.ledger.entries()
    bench.era = NEW
    ending = await bench.run(dry_run=True)
    assert ending.verdict is Verdict.DRY
    assert "it would tune again: engine was 0.26.0 and is 0.32.0" in " ".join(ending.reasons)
    assert ending.reasons[-1] == "after the change it would run reload"
    assert (bench.ledger.entries(), bench.text) == (before, "mode: a\n")


async def test_foreign_work_blocks_and_the_next_pass_does_it(bench: Bench) -> None:
    await bench.run()
    bench.era, bench.tuner.busy = NEW, ("GPU 0: process 77 (train) holds 40.0 GiB",)
    ending = await bench.run()
    assert ending.verdict is Verdict.BLOCKED and "process 77" in ending.reasons[-1]
    bench.tuner.busy = ()
    assert (await bench.run()).verdict is Verdict.PROMOTED
    assert bench.text == "mode: b\n"


async def test_a_window_that_closes_is_given_way_to_and_the_next_pass_goes_on(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW
    ending = await bench.run(seconds=1_700)
    assert ending.verdict is Verdict.GAVE_WAY
    done = len(bench.tuner.finished["retune/0001"])
    assert done == 5
    ending = await bench.run()
    assert ending.verdict is Verdict.PROMOTED and "going on" in " ".join(ending.reasons)
    assert len(bench.tuner.finished["retune/0001"]) == 15  # 5 rounds of 3, none of them twice
    assert [entry for entry in bench.ledger.entries() if isinstance(entry, Tuning)].__len__() == 1


async def test_what_changes_in_between_ends_the_unfinished_tuning(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW
    await bench.run(seconds=1_700)
    bench.era = Era("0.33.0", 400, NEW.scores)
    ending = await bench.run()
    assert "given up: engine was 0.32.0 and is 0.33.0" in " ".join(ending.reasons)
    assert ending.verdict is Verdict.PROMOTED and "retune/0002" in bench.tuner.finished


async def test_a_signal_is_kept_with_its_cost_and_the_pass_goes_on_next_time(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW

    def signalled(done: int) -> None:
        if done == 3:
            raise asyncio.CancelledError

    bench.tuner.interrupted = signalled
    with pytest.raises(asyncio.CancelledError):
        await bench.run()
    last = bench.state.passes[-1]
    assert (last.verdict, last.gpu_hours) == ("gave way", pytest.approx(3 * 300 / 3600))
    bench.tuner.interrupted = lambda done: None
    assert (await bench.run()).verdict is Verdict.PROMOTED


async def test_what_a_killed_pass_has_spent_counts_in_the_next_one(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW

    def killed(done: int) -> None:
        if done == 4:
            raise Killed

    bench.tuner.interrupted = killed
    with pytest.raises(Killed):
        await bench.run()
    told = len(bench.state.passes)
    bench.tuner.interrupted = lambda done: None
    assert (await bench.run(seconds=1_000)).verdict is Verdict.GAVE_WAY
    assert bench.state.passes[told].gpu_hours == pytest.approx(
        7 * 300 / 3600
    )  # four of the killed one, three of its own


async def test_a_spent_month_only_looks(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate({"budget": {"gpu_hours_per_month": 2.35}})
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.PROMOTED  # 0.5, 1.25 and 0.5 GPU hours
    bench.era = Era("0.33.0", 400, OLD.scores)
    assert (await bench.run()).verdict is Verdict.GAVE_WAY  # what is left takes one minute
    bench.spec = RetuneSpec.model_validate({"budget": {"gpu_hours_per_month": 2.0}})
    ending = await bench.run()
    assert ending.verdict is Verdict.BLOCKED and "of 2 GPU hours" in ending.reasons[-1]
    bench.clock.time += 31 * 86400
    assert (await bench.run()).verdict is Verdict.PROMOTED


async def test_the_gpu_hours_of_a_pass_are_a_limit_and_the_next_pass_goes_on(bench: Bench) -> None:
    await bench.run()
    bench.era, bench.spec = NEW, RetuneSpec.model_validate({"budget": {"gpu_hours": 0.5}})
    for _ in range(2):
        assert (await bench.run()).verdict is Verdict.GAVE_WAY
        assert bench.state.passes[-1].gpu_hours <= 0.5
    ending = await bench.run()
    assert ending.verdict is Verdict.PROMOTED, ending
    assert len(bench.tuner.finished["retune/0001"]) == 15


async def test_approval_waits_and_is_asked_for_once(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate({"promote": {"approval": "manual"}})
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.WAITING
    assert (await bench.run()).verdict is Verdict.WAITING
    assert bench.text == "mode: a\n"
    bench.ledger.add(Approval(2, True, "ada", 1.0))
    ending = await bench.run()
    assert ending.verdict is Verdict.PROMOTED and bench.text == "mode: b\n"


async def test_a_refused_version_is_not_deployed_and_not_proposed_again(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate({"promote": {"approval": "manual"}})
    await bench.run()
    bench.era = NEW
    await bench.run()
    bench.ledger.add(Approval(2, False, "ada", 1.0))
    assert (await bench.run()).verdict is Verdict.NOTHING
    assert bench.text == "mode: a\n"
    bench.spec = RetuneSpec()
    ending = await bench.run(force=True)  # found again, and without a manual approval still not deployed
    assert ending.verdict is Verdict.WAITING and "configuration of version 2, which a person has refused" in str(ending)
    bench.ledger.add(Approval(3, True, "ada", 2.0))
    assert (await bench.run()).verdict is Verdict.PROMOTED


async def test_what_was_rolled_back_by_a_person_is_not_deployed_again_by_itself(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.PROMOTED
    first = bench.state.version(1)
    assert first is not None
    await bench.switch.to(first, "rollback", "asked for")
    assert bench.text == "mode: a\n" and bench.state.rejected == (2,)
    ending = await bench.run(force=True)
    assert ending.verdict is Verdict.WAITING and "a person has refused or rolled back" in str(ending)
    assert bench.text == "mode: a\n"


async def test_an_approval_from_before_an_upgrade_deploys_nothing(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate({"promote": {"approval": "manual"}})
    await bench.run()
    bench.era = NEW
    await bench.run()
    bench.ledger.add(Approval(2, True, "ada", 1.0))
    bench.era = Era("0.33.0", 400, {"base": 100, "a": 150, "b": 90})
    ending = await bench.run()
    assert ending.verdict is Verdict.KEPT and "not deployed" in " ".join(ending.reasons)
    for _ in range(2):  # the new vLLM is what is known now: the old evidence does not come back with it
        assert (await bench.run()).verdict is Verdict.NOTHING
    assert bench.text == "mode: a\n" and bench.state.pending is None


async def test_a_version_that_waits_is_dropped_when_the_workload_moves(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate(
        {"promote": {"approval": "manual"}, "triggers": {"metrics_url": "http://127.0.0.1:1"}}
    )
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.WAITING
    bench.ledger.add(Approval(2, True, "ada", 1.0))
    bench.era = Era("0.32.0", 1600, {"base": 100, "a": 150, "b": 90})
    ending = await bench.run()
    assert ending.verdict is Verdict.KEPT and "version 2 is not deployed: since it was measured, prompt" in str(ending)
    assert bench.text == "mode: a\n"


async def test_a_version_that_waits_is_dropped_when_its_rival_is_rolled_back(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.PROMOTED
    bench.spec = RetuneSpec.model_validate({"promote": {"approval": "manual"}})
    bench.era = Era("0.33.0", 400, {"base": 100, "a": 150, "b": 90})
    assert (await bench.run()).verdict is Verdict.WAITING
    first = bench.state.version(1)
    assert first is not None
    await bench.switch.to(first, "rollback", "asked for")
    bench.ledger.add(Approval(3, True, "ada", 1.0))
    said = " ".join((await bench.run()).reasons)
    assert "version 3 is not deployed: it was compared with version 2, and version 1 is deployed now" in said
    assert bench.text == "mode: a\n" and bench.state.pending is None


async def test_an_unfinished_tuning_against_another_incumbent_is_given_up(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.PROMOTED
    assert (await bench.run(seconds=1_700, force=True)).verdict is Verdict.GAVE_WAY
    first = bench.state.version(1)
    assert first is not None
    await bench.switch.to(first, "rollback", "asked for")
    ending = await bench.run()
    assert "given up: version 2 was the incumbent, and version 1 is deployed now" in " ".join(ending.reasons)
    assert bench.state.version(3) is None or bench.state.version(3).before == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("approved", [False, True])
async def test_what_was_edited_by_hand_waits_for_a_person_and_is_kept(bench: Bench, approved: bool) -> None:
    await bench.run()
    (bench.folder / "deploy/0001/vllm.yaml").write_text("# mine\nmode: a\n")
    bench.era = NEW
    ending = await bench.run()
    assert ending.verdict is Verdict.WAITING and "by hand (vllm.yaml was edited)" in str(ending)
    assert bench.text == "# mine\nmode: a\n"
    if approved:
        bench.ledger.add(Approval(2, True, "ada", 1.0))
        ending = await bench.run()
        assert ending.verdict is Verdict.PROMOTED and "what was edited by hand is kept in" in ending.reasons[-1]
        assert bench.text == "mode: b\n"
        first = bench.state.version(1)
        assert first is not None
        await bench.switch.to(first, "rollback", "asked for")
        assert bench.text == "mode: a\n"  # as it is in the history, whatever became of its folder
    assert (bench.folder / "deploy/0001/vllm.yaml").read_text() == "# mine\nmode: a\n"


async def test_a_change_that_was_killed_is_undone_even_where_its_version_is_out_of_date(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate({"promote": {"approval": "manual"}})
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.WAITING
    second = bench.state.version(2)
    assert second is not None
    bench.ledger.add(SwitchBegan(1, 2, bench.clock.time, "killed"))
    bench.switch.deployment.install(second)
    bench.era = Era("0.33.0", 400, {"base": 100, "a": 150, "b": 90})
    ending = await bench.run()
    assert "the change was interrupted; version 1 is deployed again" in " ".join(ending.reasons)
    assert bench.text == "mode: a\n" and bench.state.switch is None


async def test_a_signal_in_the_middle_of_a_change_lets_it_end(bench: Bench) -> None:
    await bench.run()
    bench.era, begun = NEW, asyncio.Event()

    async def slow(moment: Moment, event: HookEvent, at: float) -> str | None:
        begun.set()
        await asyncio.sleep(0.02)
        return None

    bench.hooks.run = slow  # type: ignore[method-assign]
    task = asyncio.ensure_future(bench.run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.text == "mode: b\n" and bench.state.switch is None and bench.state.current == 2
    assert any("was ended first: version 2 runs" in reason for reason in bench.state.passes[-1].reasons)


async def test_a_drift_is_seen_in_one_pass_by_a_second_canary(bench: Bench) -> None:
    await bench.run()
    bench.era = Era("0.26.0", 400, {"base": 100, "a": 100, "b": 130})  # nothing has changed but the speed of one
    ending = await bench.run()
    assert ending.verdict is Verdict.PROMOTED and "twice in a row" in " ".join(ending.reasons)
    assert sum(isinstance(entry, Canary) for entry in bench.ledger.entries()) == 4  # and one to compare with


async def test_a_card_that_throttles_soon_after_a_tuning_is_seen(bench: Bench) -> None:
    """What later canaries are compared with is measured when the tuning ends, not weeks later."""
    await bench.run()
    bench.era = NEW
    assert (await bench.run()).verdict is Verdict.PROMOTED
    assert len(bench.state.canaries) == 1
    bench.era = Era(NEW.engine, 400, NEW.scores, speed=0.7)
    ending = await bench.run()
    assert ending.verdict is Verdict.ALERT and "the machine is slower" in ending.reasons[-1]


async def test_a_signal_after_the_promotion_does_not_undo_what_is_told(bench: Bench) -> None:
    await bench.run()
    bench.era, real = NEW, bench.tuner.canary

    async def signalled(incumbent: EngineConfig, number: int, seconds: float) -> CanaryResult:
        raise asyncio.CancelledError

    bench.tuner.canary = signalled  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await bench.run()
    assert (bench.state.passes[-1].verdict, bench.text) == ("promoted", "mode: b\n")
    bench.tuner.canary = real  # type: ignore[method-assign]
    assert (await bench.run()).verdict is Verdict.NOTHING


async def test_one_low_canary_is_measured_again_and_forgotten(bench: Bench) -> None:
    await bench.run()
    real, asked = bench.tuner.canary, []

    async def once_low(incumbent: EngineConfig, number: int, seconds: float) -> CanaryResult:
        asked.append(number)
        found = await real(incumbent, number, seconds)
        return found if len(asked) > 1 else CanaryResult((60, 60, 60), found.baseline, 0.5)

    bench.tuner.canary = once_low  # type: ignore[method-assign]
    ending = await bench.run()
    assert (ending.verdict, len(asked)) == (Verdict.NOTHING, 2)
    assert "one may be chance, so it is measured again" in " ".join(ending.reasons)


async def test_a_dry_run_says_that_it_would_go_on(bench: Bench) -> None:
    await bench.run()
    assert (await bench.run(seconds=1_700, force=True)).verdict is Verdict.GAVE_WAY
    before = bench.ledger.entries()
    ending = await bench.run(dry_run=True)
    assert "it would go on with the re-tuning of the last pass (asked for)" in ending.reasons
    assert bench.ledger.entries() == before


async def test_a_failed_hook_holds_the_version_until_a_person_agrees(bench: Bench) -> None:
    await bench.run()
    bench.era = NEW
    bench.hooks.fail = lambda moment, event: moment == "after" and event.version == 2
    assert (await bench.run()).verdict is Verdict.ROLLED_BACK
    bench.hooks.fail = lambda moment, event: False
    ending = await bench.run()
    assert ending.verdict is Verdict.WAITING and "its hooks have failed" in ending.reasons[-1]
    bench.ledger.add(Approval(2, True, "ada", 1.0))
    assert (await bench.run()).verdict is Verdict.PROMOTED
    assert bench.text == "mode: b\n"


async def test_nothing_that_serves_is_an_alert(bench: Bench) -> None:
    await bench.run()
    bench.era = Era("0.32.0", 400, {"b": 100})
    ending = await bench.run()
    assert ending.verdict is Verdict.ALERT and "neither the incumbent nor the study's baseline" in ending.reasons[-1]
    assert bench.text == "mode: a\n"


async def test_force_tunes_without_a_trigger_and_keeps_what_is_best(bench: Bench) -> None:
    await bench.run()
    ending = await bench.run(force=True)
    assert ending.verdict is Verdict.KEPT and "asked for" not in ending.reasons[-1]


async def test_the_first_profile_is_kept_and_later_ones_are_compared(bench: Bench) -> None:
    bench.spec = RetuneSpec.model_validate({"triggers": {"metrics_url": "http://127.0.0.1:1", "canary": False}})
    await bench.run()
    reference = bench.state.reference
    assert isinstance(reference, Reference) and reference.profile is not None
    bench.era = Era(OLD.engine, 1600, OLD.scores)
    ending = await bench.run()
    assert "prompt lengths have moved" in " ".join(ending.reasons)
    tuning = next(entry for entry in bench.ledger.entries() if isinstance(entry, Tuning))
    assert tuning.moved and tuning.profile is not None


async def test_history_and_metrics_tell_the_same(bench: Bench, tmp_path: Path) -> None:
    await bench.run()
    bench.era = NEW
    await bench.run()
    bench.clock.time += 1
    first = bench.state.version(1)
    assert first is not None
    bench.ledger.add(Approval(2, False, "ada", bench.clock.time))
    await bench.switch.to(first, "rollback", "asked for")
    shown = rows(bench.ledger.entries())
    assert [(row.verdict, row.version) for row in shown] == [
        ("nothing", 1), ("promoted", 2), ("refused", 2), ("rolled back", 1),
    ]  # fmt: skip
    assert [row.gain != "" for row in shown] == [False, True, False, False]
    assert shown[1].gain.startswith("x1.") and shown[1].gpu_hours > 1
    text = metrics_text('a "study"', bench.state, 0.04)
    assert 'autotune_retune_passes_total{study="a \\"study\\"",verdict="promoted"} 1' in text
    assert 'autotune_retune_version{study="a \\"study\\""} 1' in text
    write_metrics(tmp_path / "m" / "retune.prom", text)
    assert (tmp_path / "m" / "retune.prom").read_text() == text and len(list((tmp_path / "m").iterdir())) == 1
    async with served("127.0.0.1:0", lambda: text) as url, aiohttp.ClientSession() as client:
        assert await (await client.get(url)).text() == text
    write_plot("study", bench.ledger.entries(), tmp_path / "plot.html")
    assert "promoted: " in (tmp_path / "plot.html").read_text()


async def test_the_service_goes_on_after_a_pass_that_could_not_run(bench: Bench) -> None:
    from autotune.errors import EnvironmentFault

    said: list[str] = []
    calls: list[float] = []

    async def run(call: Call) -> Ending:
        calls.append(call.fire)
        if len(calls) == 1:
            raise EnvironmentFault("another pass is using gpu-0")
        return await bench.run()

    schedule = Schedule.of(RetuneSpec(cron="0 3 * * *"), "x")
    service = Service(schedule, 3600, bench.clock, run, lambda now: first_start(bench.ledger, now), said.append)
    await service.serve(bench.clock.time + 3 * 86400)
    assert len(calls) == 3 and len(set(calls)) == 3
    assert any("another pass is using gpu-0" in line for line in said)


async def test_a_canary_that_could_not_be_measured_at_all_is_told(bench: Bench) -> None:
    await bench.run()

    async def dead(incumbent: EngineConfig, number: int, seconds: float) -> CanaryResult:
        return CanaryResult((), (), 0.2, "out of memory at start")

    bench.tuner.canary = dead  # type: ignore[method-assign]
    ending = await bench.run()
    assert "the incumbent cannot serve any more: out of memory" in " ".join(ending.reasons)
    assert ending.verdict is Verdict.KEPT
    assert isinstance(bench.ledger.entries()[-1], PassEnded)
