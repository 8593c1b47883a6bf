"""The driver at scale: 1,000 simulated GPUs, 10,000 trials, and eight GPUs against one. Prints the table of RESULTS.md.

    .venv/bin/python -m benchmarks.scale                    # everything
    .venv/bin/python -m benchmarks.scale driver --trials 1000 --gpus 100
    .venv/bin/python -m benchmarks.scale speedup --seeds 3
    .venv/bin/python -m benchmarks.scale grounds --seeds 8 --budgets 60 --surfaces dense1 moe8
    .venv/bin/python -m benchmarks.scale lending --seeds 10 --trials 400

The driver, the proposer, the store and the rules are the real ones, on a real disk. Engines are not started: an
executor answers from a synthetic surface (`world.py`) after the seconds that a trial takes on an H200. Those seconds
pass on a virtual clock; every processor second of the driver passes on the same clock, so a slow driver makes a study
longer. `--filled 9500` puts trials into the database before, to see the cost at the end of a long study.
"""

from __future__ import annotations

import argparse

from benchmarks.scale import driver, grounds, lending, speedup


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("part", nargs="?", choices=["driver", "speedup", "grounds", "lending", "all"], default="all")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--filled", type=int, default=0, help="put so many of the trials into the database before")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", default=[30, 120, 300])
    parser.add_argument("--more", type=float, default=0.25, help="share of trials that eight GPUs get in addition")
    parser.add_argument("--proposer", default="auto")
    parser.add_argument("--surfaces", nargs="+", default=["dense1", "moe8", "held-dense32x2", "simulator"])
    given = parser.parse_args()
    if given.part in ("driver", "all"):
        print(driver.table(given.trials, given.gpus, given.proposer, given.filled))
    if given.part in ("speedup", "all"):
        print(speedup.table(given.seeds, given.proposer, given.budgets, given.more))
    if given.part in ("grounds", "all"):
        for trials in given.budgets:
            print(grounds.table(given.surfaces, trials, given.seeds))
    if given.part in ("lending", "all"):
        print(lending.table(given.trials, given.seeds))


if __name__ == "__main__":
    main()
