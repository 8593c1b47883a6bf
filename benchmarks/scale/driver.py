"""What the driver itself costs: seconds of processor time a trial, bytes in memory and in the database."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from pathlib import Path

from autotune.events import Event, StudyFinished, TrialStarted
from autotune.search import view
from benchmarks.scale.clock import run_virtually
from benchmarks.scale.world import fill, play

HEAD = (
    "| simulated GPUs | trials in all | measured here | proposer | driver, processor s a trial | real s a trial | "
    "peak memory | database | a trial in it | GPUs busy |\n|---|---|---|---|---|---|---|---|---|---|"
)


def table(trials: int, gpus: int, proposer: str, filled: int) -> str:
    """One row.

    Args:
        trials: of the whole study.
        gpus: places.
        proposer: who proposes.
        filled: so many of the trials are put into the database before; the rest is run and measured. What a trial
            costs grows with the number of records, so this is the cost at the study's end.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-scale-") as name:
        folder = Path(name)
        if filled:
            view.MOST = 0  # past its 2,000 trials it is not continued, and making it again is no part of a trial
            asyncio.run(fill(folder, filled, gpus=gpus, seed=1))
        watch = Watch()
        played, virtual, _ = run_virtually(
            play(folder, gpus=gpus, trials=trials, seed=1, proposer=proposer, observer=watch)
        )
        records = played.result.records
        new = records[filled:]
        busy = sum(record.seconds for record in new)
        database = sum(path.stat().st_size for path in (folder / "scale").glob("study.db*"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (
        f"{HEAD}\n| {gpus:,} | {len(records):,} | {len(new):,} | {proposer} | {watch.processor / len(new):.3f} | "
        f"{watch.real / len(new):.3f} | {peak / 2**20:.0f} MiB | {database / 2**20:.0f} MiB | "
        f"{database / len(records) / 1024:.1f} KiB | {busy / (virtual * gpus):.0%} |"
    )


class Watch:
    """An observer that takes the time from the first trial to the end of the study."""

    def __init__(self) -> None:
        self.processor = self.real = 0.0
        self._began: tuple[float, float] | None = None

    def notify(self, event: Event) -> None:
        """See `Observer`."""
        now = (time.process_time(), time.monotonic())
        if isinstance(event, TrialStarted) and self._began is None:
            self._began = now
        elif isinstance(event, StudyFinished) and self._began is not None:
            self.processor, self.real = now[0] - self._began[0], now[1] - self._began[1]
