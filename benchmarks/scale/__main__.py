"""The driver at scale: 1,000 simulated GPUs, 10,000 trials, and eight GPUs against one. Prints the table of RESULTS.md.

    .venv/bin/python -m benchmarks.scale                    # everything
    .venv/bin/python -m benchmarks.scale driver --trials 1000 --gpus 100
    .venv/bin/python -m benchmarks.scale speedup --seeds 3

The driver, the proposer, the store and the rules are the real ones, on a real disk. Engines are not started: an
executor answers from `simulator/core.py`'s sibling, a synthetic surface (`benchmarks/search/surfaces.py`), after the
seconds that a trial takes on an H200. Those seconds pass on a virtual clock; every second that the driver itself
computes passes on the same clock, so a slow driver makes a study longer.
"""

from __future__ import annotations

import argparse

from benchmarks.scale import driver, speedup


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("part", nargs="?", choices=["driver", "speedup", "all"], default="all")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--proposer", default="auto")
    given = parser.parse_args()
    if given.part in ("driver", "all"):
        print(driver.table(given.trials, given.gpus, given.proposer))
    if given.part in ("speedup", "all"):
        print(speedup.table(given.seeds, given.proposer))


if __name__ == "__main__":
    main()
