"""Seconds from proposal to the first token, for plain and fast starts of the same configuration, in one run.

    python -m benchmarks.starts.starts STUDY --rounds 3 --modes plain,fork,standby --cold 2 --out starts.json

Modes: `plain` is `vllm serve` as anybody would start it; `fork` forks the engine process instead of importing vLLM
again (one GPU); `standby` also hands the command line to an interpreter that has imported vLLM before. The rounds take
the modes in turn. Every start is proven to serve, is stopped, and its resolved configuration is taken from the log.

With `--cold N` every mode has caches of its own (vLLM's, Inductor's and Triton's). In each of the first N rounds they
are new and empty; later rounds find those of the last cold one, so they are warm. `recompiled` is a mode of cold
rounds only: `standby` with an empty compile cache, but with Triton's kernels of `standby` before it, which is what a
study's later configurations find. `--keep` keeps the logs of all starts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.assembly import frame
from autotune.engine.process import STOP_GRACE, ProcessEngine
from autotune.engine.protocol import Lease, StartFailure
from autotune.engine.registry import create_engine
from autotune.engine.standby import Standby
from autotune.host.gpus import read_gpus
from autotune.host.leases import leased
from autotune.spec.study import StudySpec
from autotune.study import Study, open_study

RESOLVED = re.compile(r"Initializing a V1 LLM engine \(v[^)]*\) with config: (.*)")
OWN = re.compile(r"served_model_name=\S+")
"""The one resolved value that differs by intent: every start has a served name of its own."""
RECOMPILED = "recompiled"
WAITING = ("standby", RECOMPILED)
"""Modes that hand their command line to a waiting interpreter."""


@dataclass(frozen=True)
class Start:
    """One start. `seconds` from the order to the first token; `resolved` is vLLM's own line without the served name."""

    mode: str
    round: int
    cold: bool
    seconds: float
    phases: tuple[tuple[str, float], ...]
    used_standby: bool
    resolved: str


def own_caches(mode: str, scratch: Path) -> dict[str, str]:
    """Variables that give a mode caches of its own in the folder, and say no more than where they are."""
    kernels = "standby" if mode == RECOMPILED else mode
    caches = {"VLLM_CACHE_ROOT": str(scratch / f"{mode}-vllm"), "TRITON_HOME": str(scratch / f"{kernels}-triton")}
    return caches | {"TORCHINDUCTOR_CACHE_DIR": str(scratch / f"{mode}-inductor")}


async def measure(
    study: Study, mode: str, number: int, folder: Path, standby: Standby | None, caches: dict[str, str], *, cold: bool
) -> Start:
    """Start, take the time, stop."""
    made = frame(study, read_gpus())
    env = {**study.spec.engine.env, **caches}
    fast = study.spec.engine.model_copy(update={"fast_start": mode != "plain", "live": False, "env": env})
    spec: StudySpec = study.spec.model_copy(update={"engine": fast})
    engine = create_engine(spec, standby=standby, base=study.path.parent)
    gpus = 0 if spec.engine.python == "cpu" else (spec.hardware.gpus if spec.hardware.gpus is not None else 1)
    async with leased(gpus, "starts", devices=spec.hardware.devices) as mine:
        if standby is not None and isinstance(engine, ProcessEngine):
            await engine.prepare(made.baseline, Lease(mine.gpus, mine.port), folder.parent)
            await standby.wait_ready()  # in a study this happens while the trial before is measured
        begin = time.monotonic()
        running = await engine.start(made.baseline, Lease(mine.gpus, mine.port), folder=folder)
        seconds = time.monotonic() - begin
        if isinstance(running, StartFailure):
            raise SystemExit(f"{mode}: {running.failure.reason} ({running.log})")
        phases = tuple((phase.name, round(phase.seconds, 2)) for phase in running.phases)
        used = standby is not None and standby.used
        await running.stop()
    log = (folder / "engine.log").read_text(errors="replace")
    found = RESOLVED.search(log)
    return Start(mode, number, cold, seconds, phases, used, OWN.sub("", found.group(1)) if found else "")


async def run(
    study: Study, modes: list[str], rounds: int, *, cold: int, scratch: Path, out: Path | None
) -> list[Start]:
    """All starts, interleaved; what is there is written after each, so that an interruption loses nothing."""
    starts: list[Start] = []
    for number in range(rounds):
        first = number < cold
        for mode in modes:
            if mode == RECOMPILED and not first:
                continue
            folder = scratch / f"{mode}-{number}"
            caches = own_caches(mode, scratch / f"caches-{min(number, cold - 1)}") if cold else {}
            # One for each start: an interpreter that waits knows the caches of the start before.
            standby = Standby(STOP_GRACE) if mode in WAITING else None
            try:
                start = await measure(study, mode, number, folder, standby, caches, cold=first)
            finally:
                if standby is not None:
                    await standby.close()
            starts.append(start)
            print(f"{mode:10} round {number}: {start.seconds:6.1f} s {dict(start.phases)}", flush=True)
            if out is not None:
                out.write_text(json.dumps([asdict(item) for item in starts], indent=1))
    return starts


def tables(starts: list[Start]) -> str:
    """A table of all starts; where some were cold one of those and one of the others."""
    cold = [start for start in starts if start.cold]
    if not cold:
        return table(starts)
    parts = (("cold", cold), ("warm", [start for start in starts if not start.cold]))
    return "\n\n".join(f"{name}\n\n{table(part)}" for name, part in parts if part)


def table(starts: list[Start]) -> str:
    """Medians, ratios to plain, and whether the resolved configurations are the same."""
    by_mode: dict[str, list[Start]] = {}
    for start in starts:
        by_mode.setdefault(start.mode, []).append(start)
    plain = statistics.median(item.seconds for item in by_mode.get("plain", starts))
    lines = ["| mode | starts | median s | ratio to plain | same resolved configuration |", "|---|---|---|---|---|"]
    reference = starts[0].resolved
    for mode, items in by_mode.items():
        median = statistics.median(item.seconds for item in items)
        same = "yes" if reference and all(item.resolved == reference for item in items) else "no"
        lines.append(f"| {mode} | {len(items)} | {median:.1f} | {median / plain:.2f} | {same} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--modes", default="plain,fork,standby", help="plain, fork, standby, recompiled")
    parser.add_argument("--cold", type=int, default=0, help="caches of its own for each mode, empty in so many rounds")
    parser.add_argument("--keep", type=Path, help="folder for logs and caches; deleted at the end without it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    study, modes = open_study(arguments.study), arguments.modes.split(",")
    with contextlib.ExitStack() as stack:
        scratch = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starts-")))
        starts = asyncio.run(
            run(study, modes, arguments.rounds, cold=arguments.cold, scratch=scratch, out=arguments.out)
        )
    print(tables(starts))


if __name__ == "__main__":
    main()
