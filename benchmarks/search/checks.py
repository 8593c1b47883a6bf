"""`python -m benchmarks.search.checks`: CPU seconds of a proposal after 1,000 trials, and false claims between equals.

Writes checks.json, which RESULTS.md quotes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time

import numpy as np

from autotune.errors import EnvironmentFault
from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Measured, Proposal, TrialRecord
from autotune.search.confirm import analyse
from autotune.search.screen import Screen, Tried
from autotune.space.config import EngineConfig
from benchmarks.search.arms import ARMS, proposer_of
from benchmarks.search.study import OBJECTIVES, SimulatedStudy
from benchmarks.search.surfaces import MOE8
from benchmarks.search.targets import CHECKS

TRIALS = 1000
ASKED = ("auto", "local + warm", "tpe + warm", "nsga2 + warm", "gp + warm", "random + warm")
NOISES = {
    "run to run 0.5 %": (0.005, 0.0),
    "3 %": (0.03, 0.0),
    "5 %": (0.05, 0.0),
    "2 % and drift 1.2 % a run": (0.02, 0.012),
}


def long_study() -> SimulatedStudy:
    """A thousand random configurations, with what the warm start would have measured."""
    study = SimulatedStudy(MOE8, 0)
    screen = Screen(study.space, EngineConfig(), lambda _: None)
    nothing, rng, seen = Tried(frozenset()), random.Random(1), set()
    points = [study.baseline_point(), *study.expert_points()]
    while len(study.history) < TRIALS:
        point = points.pop(0) if points else screen.random_point(rng)
        candidate = screen.candidate(point, nothing)
        if candidate.admitted and candidate.config.hash not in seen:
            seen.add(candidate.config.hash)
            study.run(candidate.proposal("sampler" if study.history else "baseline"))
    return study


def overhead() -> dict[str, float]:
    """CPU seconds of the dearest of three proposals, by arm."""
    found: dict[str, float] = {}
    whole = long_study()
    for arm in (one for one in ARMS if one.name in ASKED):
        study = SimulatedStudy(
            MOE8, 0, live=arm.live, history=[*whole.history], truths=[*whole.truths], seconds=[*whole.seconds]
        )
        try:
            proposer = proposer_of(arm, study)
        except EnvironmentFault as fault:
            print(f"left out: {arm.name}: {fault.message}")
            continue
        times = []
        for _ in range(3):
            before = time.process_time()
            proposal = proposer.propose(study.history)
            times.append(time.process_time() - before)
            if proposal is not None:
                study.run(proposal)
        found[arm.name] = round(max(times), 3)
        print(arm.name, found[arm.name], flush=True)
    return found


def claims(studies: int, sigma: float, drift: float) -> float:
    """Share of studies that claim a winner although all four arms are the same."""
    rng = np.random.default_rng(11)
    arms = [EngineConfig.of({"arm": number}) for number in range(4)]
    won = 0
    for _ in range(studies):
        level, rounds, number = 0.0, [], 0
        for begin in range(3):
            row: dict[str, TrialRecord] = {}
            for config in (*arms[begin:], *arms[:begin]):
                level += drift * rng.normal()
                speed, late = (math.exp(level + sigma * rng.normal()) for _ in range(2))
                row[config.hash] = _record(config, number, 1000 * speed, 100 * late, sigma)
                number += 1
            rounds.append(row)
        won += analyse(rounds, OBJECTIVES, arms[0]).winner is not None
    return won / studies


def _record(config: EngineConfig, number: int, speed: float, ttft: float, sigma: float) -> TrialRecord:
    figures = tuple(
        (key, Estimate(value, value * (1 - sigma), value * (1 + sigma), 400))
        for key, value in (("output_throughput", speed), ("ttft_p95_ms", ttft))
    )
    load = LoadReport((LevelReport(Level("closed", 1.0), figures, requests=400),))
    return TrialRecord(number, Proposal(config, (), "confirm"), Measured(load, None), 0.0, 100.0, gpus=1)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.checks", description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    arguments = parser.parse_args()
    kept = json.loads(CHECKS.read_text())["overhead"] if CHECKS.exists() else {}
    rates = {name: claims(arguments.studies, *noise) for name, noise in NOISES.items()}
    print(rates)
    document = {"studies": arguments.studies, "overhead": {**kept, **overhead()}, "claims": rates}
    CHECKS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
