"""The rule of promotion, the deployed files, and the way back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.retune.deploy import Deployment
from autotune.retune.ledger import SwitchBegan, Version
from autotune.retune.promotion import Switch, Tuned, judge, version_to_restore
from autotune.retune.state import State
from autotune.retune.verdict import Verdict
from autotune.space.config import EngineConfig
from autotune.testing.retune_world import FakeHooks, MemoryLedger


def tuned(*gains: tuple[str, float, float, float], proven: bool = True) -> Tuned:
    return Tuned(EngineConfig(), proven, gains, "the claim", "passed", "study", 1.0)


def version(number: int, before: int = 0) -> Version:
    return Version(number, (("mode", number),), (), before, "study", float(number), f"claim {number}",
                   files=(("vllm.yaml", f"mode: {number}\n"),))  # fmt: skip


@pytest.mark.parametrize(
    ("gains", "promote"),
    [
        ([("tok/s", 1.10, 1.05, 1.15)], True),
        ([("tok/s", 1.05, 1.029, 1.07)], False),
        ([("tok/s", 1.30, 0.95, 1.70)], False),
        ([("tok/s", 1.00, 0.99, 1.01), ("ttft", 1.4, 1.2, 1.6)], True),
        ([("tok/s", 0.94, 0.92, 0.96), ("ttft", 1.4, 1.2, 1.6)], False),
        ([], False),
    ],
)
def test_only_a_lower_bound_beyond_the_margin_promotes(
    gains: list[tuple[str, float, float, float]], promote: bool
) -> None:
    judgement = judge(tuned(*gains), 0.03)
    assert judgement.promote is promote and judgement.sentence


def test_what_is_not_proven_stays_whatever_its_gain() -> None:
    assert not judge(tuned(("tok/s", 2.0, 1.9, 2.1), proven=False), 0.03).promote


def test_an_incumbent_that_cannot_serve_is_replaced_even_without_a_gain() -> None:
    judgement = judge(tuned(proven=False), 0.03, fallback=True)
    assert judgement.promote and "the study's baseline replaces it" in judgement.sentence


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


def switch(tmp_path: Path, ledger: MemoryLedger, hooks: FakeHooks, out: str = "deploy") -> Switch:
    return Switch("study", ledger, Deployment(tmp_path / out, "study"), hooks, lambda: 1.0)


async def deployed_two(tmp_path: Path, ledger: MemoryLedger, out: str = "deploy") -> None:
    one = switch(tmp_path, ledger, FakeHooks(), out)
    for number in (1, 2):
        ledger.add(version(number, number - 1))
        assert (await one.to(version(number, number - 1), "promote", "test")).verdict is Verdict.PROMOTED


@pytest.mark.parametrize(
    ("out", "read"), [("deploy", "deploy/current/vllm.yaml"), ("conf/vllm.yaml", "conf/vllm.yaml")]
)
async def test_files_are_replaced_and_nothing_is_left_over(
    tmp_path: Path, ledger: MemoryLedger, out: str, read: str
) -> None:
    await deployed_two(tmp_path, ledger, out)
    assert (tmp_path / read).read_text() == "mode: 2\n"
    assert [path.name for path in tmp_path.rglob(".*")] == ([".study"] if out == "deploy" else [])


async def test_a_failed_hook_after_the_change_restores_files_and_tells_the_service(
    tmp_path: Path, ledger: MemoryLedger
) -> None:
    await deployed_two(tmp_path, ledger)
    ledger.add(version(3, 2))
    hooks = FakeHooks(fail=lambda moment, event: moment == "after" and event.version == 3)
    ending = await switch(tmp_path, ledger, hooks).to(version(3, 2), "promote", "test")
    assert ending.verdict is Verdict.ROLLED_BACK and "version 2 is deployed again" in ending.reasons[0]
    assert (tmp_path / "deploy/current/vllm.yaml").read_text() == "mode: 2\n"
    assert [(moment, event.change, event.version) for moment, event in hooks.called] == [
        ("before", "promote", 3), ("after", "promote", 3), ("after", "restore", 2),
    ]  # fmt: skip
    state = State.of(ledger.entries())
    assert (state.current, state.held, state.pending) == (2, True, version(3, 2))


async def test_a_failed_hook_before_the_change_leaves_everything(tmp_path: Path, ledger: MemoryLedger) -> None:
    await deployed_two(tmp_path, ledger)
    ledger.add(version(3, 2))
    hooks = FakeHooks(fail=lambda moment, event: moment == "before")
    ending = await switch(tmp_path, ledger, hooks).to(version(3, 2), "promote", "test")
    assert "nothing was changed" in ending.reasons[0]
    assert [moment for moment, _ in hooks.called] == ["before"]
    assert not (tmp_path / "deploy/0003").exists()


async def test_a_switch_that_was_killed_is_undone(tmp_path: Path, ledger: MemoryLedger) -> None:
    await deployed_two(tmp_path, ledger)
    ledger.add(version(3, 2))
    ledger.add(SwitchBegan(2, 3, 1.0, "test"))
    one = switch(tmp_path, ledger, FakeHooks())
    one.deployment.install(version(3, 2))
    ending = await one.recover()
    assert ending is not None and "interrupted" in ending.reasons[0]
    assert (tmp_path / "deploy/current/vllm.yaml").read_text() == "mode: 2\n"
    assert State.of(ledger.entries()).pending == version(3, 2)  # proven still: the next step tries it again
    assert await one.recover() is None


async def test_a_target_that_cannot_be_written_restores_too(tmp_path: Path, ledger: MemoryLedger) -> None:
    await deployed_two(tmp_path, ledger)
    (tmp_path / "deploy/0003").write_text("in the way")
    ledger.add(version(3, 2))
    (tmp_path / "deploy/.current.partial").mkdir()
    ending = await switch(tmp_path, ledger, FakeHooks()).to(version(3, 2), "promote", "test")
    assert ending.verdict is Verdict.ROLLED_BACK and "cannot be replaced" in ending.reasons[0]
    assert (tmp_path / "deploy/current/vllm.yaml").read_text() == "mode: 2\n"


async def test_rollback_restores_any_version(tmp_path: Path, ledger: MemoryLedger) -> None:
    await deployed_two(tmp_path, ledger)
    state = State.of(ledger.entries())
    assert version_to_restore(state, None).number == 1
    await switch(tmp_path, ledger, FakeHooks()).to(version_to_restore(state, None), "rollback", "asked for")
    assert (tmp_path / "deploy/current/vllm.yaml").read_text() == "mode: 1\n"
    with pytest.raises(SpecError, match="no version 7") as error:
        version_to_restore(state, 7)
    assert error.value.hint == "known versions: 1, 2"
    with pytest.raises(SpecError, match="no version before"):
        version_to_restore(State.of(ledger.entries()), None)


def test_several_files_do_not_go_to_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="writes several files"):
        Deployment(tmp_path / "vllm.yaml", "study").check((("a.yaml", ""), ("b.yaml", "")))


def test_a_folder_belongs_to_one_study(tmp_path: Path) -> None:
    Deployment(tmp_path / "deploy", "one").install(version(1))
    other = Deployment(tmp_path / "deploy", "other")
    for refused in (other.existing, lambda: other.check(())):
        with pytest.raises(SpecError, match="holds the files of study 'one'") as error:
            refused()
        assert error.value.hint == "name another folder for this study, such as `out: deploy-other`"


def test_a_folder_that_no_step_replaces_is_refused_before_any_hook(tmp_path: Path) -> None:
    (tmp_path / "deploy/current").mkdir(parents=True)
    with pytest.raises(SpecError, match="is a folder, which no step replaces"):
        Deployment(tmp_path / "deploy", "study").check(())


async def test_a_file_that_was_edited_by_hand_is_copied_before_it_is_replaced(
    tmp_path: Path, ledger: MemoryLedger
) -> None:
    await deployed_two(tmp_path, ledger, "vllm.yaml")
    one = switch(tmp_path, ledger, FakeHooks(), "vllm.yaml")
    for number, text in enumerate(("mine", "mine again"), 1):
        (tmp_path / "vllm.yaml").write_text(text)
        assert "by hand (vllm.yaml was edited)" in one.edits()
        ending = await one.to(version(number, 1), "rollback", "asked for")
        assert ending.reasons[-1].endswith(f"is kept in {tmp_path / f'vllm.yaml.edited-{number}'}")
        assert (tmp_path / f"vllm.yaml.edited-{number}").read_text() == text
    (tmp_path / "vllm.yaml").write_text("a third time")
    ledger.add(SwitchBegan(2, 1, 1.0, "killed before anything was done"))
    await one.recover()
    assert (tmp_path / "vllm.yaml.edited-3").read_text() == "a third time"
    assert (tmp_path / "vllm.yaml").read_text() == "mode: 2\n" and one.edits() == ""


async def test_a_disk_that_fills_up_in_the_middle_leaves_no_half_of_a_version(
    tmp_path: Path, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deployed_two(tmp_path, ledger)
    ledger.add(version(3, 2))
    real = os.fsync

    def full(handle: int) -> None:
        if ".0003.partial" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    ending = await switch(tmp_path, ledger, FakeHooks()).to(version(3, 2), "promote", "test")
    assert "No space left on device; version 2 is deployed again" in ending.reasons[0]
    assert sorted(path.name for path in (tmp_path / "deploy").iterdir()) == [".study", "0001", "0002", "current"]
