"""What the driver itself costs: seconds of processor time a trial, bytes in memory and in the database."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.scale.clock import run_virtually
from benchmarks.scale.world import play


def table(trials: int, gpus: int, proposer: str) -> str:
    """One row, each of these in a process of its own so that memory is not shared."""
    with tempfile.TemporaryDirectory(prefix="autotune-scale-") as name:
        folder = Path(name)
        before, began = _memory(), time.process_time()
        played, virtual, spent = run_virtually(play(folder, gpus=gpus, trials=trials, seed=1, proposer=proposer))
        processor = time.process_time() - began
        records = played.result.records
        busy = sum(record.seconds for record in records)
        database = sum(path.stat().st_size for path in (folder / "scale").glob("study.db*"))
        gc.collect()
        count = len(records)
    return "\n".join(
        [
            "| simulated GPUs | trials | proposer | driver, real s a trial | processor s a trial | peak memory | "
            "database | a trial in it | study on the clock | GPUs busy |",
            "|---|---|---|---|---|---|---|---|---|---|",
            f"| {gpus:,} | {count:,} | {proposer} | {spent / count:.3f} | {processor / count:.3f} | "
            f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) / 2**20:.0f} MiB "
            f"({before / 2**20:.0f} before) | {database / 2**20:.0f} MiB | {database / count / 1024:.1f} KiB | "
            f"{virtual / 3600:.2f} h | {busy / (virtual * gpus):.0%} |",
        ]
    )


def _memory() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
