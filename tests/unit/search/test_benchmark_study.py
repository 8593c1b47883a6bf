"""What the studies of `benchmarks.search` pay: what a search on real engines pays."""

from __future__ import annotations

import pytest

from autotune.outcome import Proposal
from autotune.search.restart import running_engine
from autotune.space.config import EngineConfig, FrozenValue
from benchmarks.search.study import BATCHED, SEQS, SimulatedStudy
from benchmarks.search.surfaces import DENSE1, Surface


def study(surface: Surface = DENSE1, *, live: bool = True) -> SimulatedStudy:
    return SimulatedStudy(surface, 0, live=live)


def config(study: SimulatedStudy, **changes: FrozenValue) -> EngineConfig:
    return study.space.config({**study.baseline_point(), **changes}, EngineConfig())


def test_one_wide_start_serves_every_smaller_step_live() -> None:
    """The engine starts with the baseline's 2,048 tokens; the true values are those of a plain start."""
    room = study()
    first = room.run(Proposal(config(room, weights="fp8", **{BATCHED: 512})))
    second = room.run(Proposal(config(room, weights="fp8", **{BATCHED: 1448, SEQS: 128})))
    assert (first.restarted, second.restarted) == (True, False)
    assert second.seconds == room.costs.live + room.costs.measure
    engine = running_engine(room.history)
    assert engine is not None and engine.room == {BATCHED: 2048}
    point = room.space.point_of(first.config)
    assert point is not None
    assert room.truths[0][:2] == (room.figures(point, point).throughput, room.figures(point, point).ttft_s)


def test_above_its_room_an_engine_is_started_as_asked() -> None:
    room = study()
    room.run(Proposal(config(room, **{BATCHED: 4096})))
    assert room.run(Proposal(config(room, **{BATCHED: 2896}))).restarted is False
    assert room.run(Proposal(config(room, **{BATCHED: 5793}))).restarted is True
    assert running_engine(room.history) is not None
    assert running_engine(room.history).room == {}  # type: ignore[union-attr]


def test_without_live_changes_every_size_of_a_step_is_a_start_and_a_compilation() -> None:
    plain = study(live=False)
    for tokens in (512, 1024):
        record = plain.run(Proposal(config(plain, **{BATCHED: tokens})))
        assert record.restarted and record.seconds == plain.costs.plain


@pytest.mark.parametrize("refused", [True, False])
def test_where_the_wide_start_has_no_room_the_engine_starts_as_asked(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by the memory model, that is free; else it costs a start that fails."""
    tight = study()
    narrow = config(tight, **{BATCHED: 512})
    wide = tight.headroom.widened(narrow)
    limit = tight.figures

    def figures(point: dict[str, FrozenValue], started: dict[str, FrozenValue]) -> object:
        found = limit(point, started)
        return type(found)(found.throughput, found.ttft_s, found.loss, 1) if started[BATCHED] == 2048 else found

    monkeypatch.setattr(tight, "figures", figures)
    monkeypatch.setattr(tight, "refuse", lambda asked: "no room" if refused and asked == wide else None)
    record = tight.run(Proposal(narrow))
    failed = 0.0 if refused else tight.costs.start + tight.costs.compile
    assert record.restarted and record.seconds == failed + tight.costs.plain
    assert tight.running == narrow
