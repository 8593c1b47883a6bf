"""Does a live value measure like the same value after a restart, and does the scheduler class cost anything unused?

    python -m benchmarks.live.live [STUDY] --live max_num_seqs=4 --live max_num_batched_tokens=128 --rounds 5

All engines are started once and stay up; each round measures every arm once under the same lengths and arrivals, and
rounds take the arms in turn from both ends. An idle engine computes nothing. The arms:

    plain      `vllm serve` with the study's baseline
    unused     the same with our scheduler class, whose limits are never written
    restart X  `vllm serve` started with the value X
    live X     one engine with our scheduler class, started as the baseline and changed to X before each measurement

Printed are the ratios unused / plain and live X / restart X of each figure, with the 95 % interval over the rounds
(Student's t, never narrower than the time blocks within the windows allow).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from autotune.assembly import frame
from autotune.engine.live_scheduler import NAMES, SharedFileFactory
from autotune.engine.protocol import Lease, RunningEngine, StartFailure
from autotune.engine.registry import create_engine
from autotune.host.gpus import read_gpus
from autotune.host.leases import leased
from autotune.load.client import LoadClient
from autotune.load.measure import measure
from autotune.load.report import Estimate, LevelReport, Target
from autotune.search.paired import Gain, Ratio, compare
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study

FIGURES = ("output_throughput", "ttft_p50_ms", "tpot_p50_ms")
ONE_SIDE = 0.025
"""Chance of an error on one side: both together leave 95 %."""
ATTEMPTS = 2
"""An invalid measurement is repeated so often; after that its round counts without the arm."""
Z95 = 1.96
Item = TypeVar("Item")


@dataclass(frozen=True)
class Arm:
    """What is measured: an engine, and the limits written before each measurement (None: nothing is ever written)."""

    name: str
    engine: RunningEngine
    limits: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Row:
    """One measurement. Figures as value, lower and upper end of their own interval; `load` is the 1-minute average."""

    arm: str
    round: int
    figures: dict[str, tuple[float, float, float]]
    load: float


@dataclass
class Bench:
    """The engines' surroundings: one study, one lease, folders that go in the end."""

    study: Study
    config: EngineConfig
    scratch: Path
    stack: AsyncExitStack

    async def start(self, name: str, config: EngineConfig, *, live: bool) -> RunningEngine:
        """Start an engine that stays up to the end.

        Raises:
            SystemExit: it does not come up.
        """
        settings = self.study.spec.engine.model_copy(update={"fast_start": False, "live": live})
        spec = self.study.spec.model_copy(update={"engine": settings})
        engine = create_engine(spec, live=SharedFileFactory() if live else None, base=self.study.path.parent)
        without = spec.engine.python == "cpu" or spec.engine.kind == "simulated"
        gpus = 0 if without else (spec.hardware.gpus if spec.hardware.gpus is not None else 1)
        mine = await self.stack.enter_async_context(leased(gpus, "live"))
        running = await engine.start(config, Lease(mine.gpus, mine.port), folder=self.scratch / name.replace(" ", "-"))
        if isinstance(running, StartFailure):
            raise SystemExit(f"{name}: {running.failure.reason} ({running.log})")
        self.stack.push_async_callback(running.stop)
        print(f"{name}: up", flush=True)
        return running

    async def arms(self, values: Sequence[tuple[str, int]]) -> list[Arm]:
        """Start everything that is compared."""
        arms = [
            Arm("plain", await self.start("plain", self.config, live=False)),
            Arm("unused", await self.start("unused", self.config, live=True)),
        ]
        changing = await self.start("live", self.config, live=True)
        for name, value in values:
            label = f"{name}={value}"
            restarted = await self.start(f"restart {label}", self.config.merged({name: value}), live=False)
            arms += [Arm(f"restart {label}", restarted), Arm(f"live {label}", changing, {name: value})]
        return arms

    async def measured(self, client: LoadClient, arm: Arm, number: int) -> Row | None:
        """One measurement, or None where it cannot be believed."""
        engine = arm.engine
        if arm.limits is not None and not await engine.reconfigure(arm.limits):
            raise SystemExit(f"{arm.name}: the running engine took no limits")
        target = Target(engine.url, engine.served_model, engine.api_key, engine.time_scale)
        for attempt in range(ATTEMPTS):
            report = await measure(
                target, self.study.spec.load, trial_seed=1000 * attempt + number, folder=self.scratch / "load",
                metrics=engine.metrics, reset=engine.reset_caches, client=client,
                alive=lambda: failure.reason if (failure := engine.failure()) is not None else None,
            )  # fmt: skip
            if not report.invalid:
                return Row(arm.name, number, figures(report.levels[-1]), os.getloadavg()[0])
            print(f"{arm.name} round {number}: {'; '.join(report.invalid)}", flush=True)
        return None


def figures(level: LevelReport) -> dict[str, tuple[float, float, float]]:
    """The compared figures of one window."""
    found = {key: level.estimate(key) for key in FIGURES}
    return {key: (one.value, one.low, one.high) for key, one in found.items() if isinstance(one, Estimate)}


def ratios(rows: Sequence[Row], arm: str, control: str) -> list[Ratio]:
    """The arm's figures over the control's, with the interval over the rounds that have both."""
    by_round = {(row.arm, row.round): row for row in rows}
    numbers = sorted({row.round for row in rows})
    pairs = [(by_round[arm, n], by_round[control, n]) for n in numbers if {(arm, n), (control, n)} <= by_round.keys()]
    found: list[Ratio] = []
    for key in FIGURES:
        gains = [_gain(mine.figures[key], theirs.figures[key]) for mine, theirs in pairs
                 if key in mine.figures and key in theirs.figures]  # fmt: skip
        found += compare({arm: gains}, key, error=ONE_SIDE).values()
    return found


def _gain(mine: tuple[float, float, float], theirs: tuple[float, float, float]) -> Gain:
    """Log-ratio with its standard error from both windows' own intervals."""
    within = math.hypot(*((high - low) / (2 * Z95 * value) for value, low, high in (mine, theirs)))
    return Gain(math.log(mine[0] / theirs[0]), within)


def turn(arms: Sequence[Item], number: int) -> list[Item]:
    """The order of one round: who begins rotates, every second round backwards, so that a drift hits all alike."""
    first = number // 2 % len(arms)
    order = [*arms[first:], *arms[:first]]
    return order[::-1] if number % 2 else order


def table(rows: Sequence[Row], values: Sequence[tuple[str, int]]) -> str:
    """Medians would hide the pairing: the table has ratios, and each arm's geometric mean for orientation."""
    pairs = [("unused", "plain"), *((f"live {n}={v}", f"restart {n}={v}") for n, v in values)]
    lines = ["| compared | figure | first | second | ratio | 95 % interval | rounds |", "|---|---|---|---|---|---|---|"]
    for arm, control in pairs:
        for ratio in ratios(rows, arm, control):
            first, second = (_mean(rows, name, ratio.label) for name in (arm, control))
            lines.append(
                f"| {arm} / {control} | {ratio.label} | {first:.1f} | {second:.1f} | {ratio.value:.3f} "
                f"| {ratio.low:.3f} to {ratio.high:.3f} | {ratio.rounds} |"
            )
    return "\n".join(lines)


def _mean(rows: Sequence[Row], arm: str, key: str) -> float:
    logs = [math.log(row.figures[key][0]) for row in rows if row.arm == arm and key in row.figures]
    return math.exp(sum(logs) / len(logs))


async def run(study: Study, values: Sequence[tuple[str, int]], rounds: int, out: Path | None) -> list[Row]:
    """Start all, measure all, stop all; the rows so far are written after each round."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="live-") as scratch:
        async with AsyncExitStack() as stack:
            bench = Bench(study, frame(study, read_gpus()).baseline, Path(scratch), stack)
            arms = await bench.arms(values)
            client = await stack.enter_async_context(LoadClient())
            for number in range(rounds):
                for arm in turn(arms, number):
                    row = await bench.measured(client, arm, number)
                    if row is not None:
                        rows.append(row)
                        told = ", ".join(f"{key} {value[0]:.1f}" for key, value in row.figures.items())
                        print(f"round {number} {arm.name:32} {told} (load average {row.load:.1f})", flush=True)
                if out is not None:
                    out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return rows


def live_value(text: str) -> tuple[str, int]:
    """`max_num_seqs=4` as a pair."""
    name, _, value = text.partition("=")
    if name not in NAMES or not value.isdigit():
        raise argparse.ArgumentTypeError(f"NAME=VALUE with a NAME of {', '.join(sorted(NAMES))} and a whole number")
    return name, int(value)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?", default=Path(__file__).with_name("cpu.yaml"))
    parser.add_argument("--live", type=live_value, action="append", dest="values", metavar="NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the rows there, as JSON")
    arguments = parser.parse_args()
    values = arguments.values or [("max_num_seqs", 4), ("max_num_batched_tokens", 128)]
    rows = asyncio.run(run(open_study(arguments.study), values, arguments.rounds, arguments.out))
    loads = [row.load for row in rows]
    print(table(rows, values))
    print(f"\n{len(rows)} measurements; 1-minute load average {min(loads):.1f} to {max(loads):.1f}.")


if __name__ == "__main__":
    main()
