"""Our client against the mock server's own record, request by request.

    python benchmarks/client/by_rank.py [--streams 256] [--step 10] [--shares 1,0.125] [--rounds 1]

Closed loop, three waves of 200 tokens, the server on one core and the client on another. For each share of the requests
whose every chunk is read when it comes (`load.itl_share`): microseconds of the client process a chunk; the errors of
TTFT and E2E, both sides sorted and compared rank by rank; and how long after the end of an answer the server has the
next request: the k-th end makes room for the request that is the k-th after the first of every stream.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from autotune.load.client import LoadClient
from autotune.load.ends import RawResult
from autotune.load.measure import measure
from autotune.load.report import Target
from autotune.load.vllm_definitions import read_records
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

sys.path.insert(0, str(Path(__file__).parent))

from mock_runner import running_mock

TOKENS = 200
WAVES = 3
TTFT_MS = 50.0


class Watched(LoadClient):
    """A client that remembers what its process told at the end."""

    results: list[RawResult]

    async def stop(self) -> list[RawResult]:
        self.results = await super().stop()
        return self.results


async def one(share: float, streams: int, step: float, server_core: int | None) -> str:
    """One run, in words."""
    load = LoadSpec(
        input_tokens=10, output_tokens=TOKENS, levels=[streams], itl_share=share, warmup=WarmupSpec(requests=0),
        window=WindowSpec(duration=120, max_duration=120),
    )  # fmt: skip
    with running_mock(TTFT_MS, step, core=server_core) as mock, tempfile.TemporaryDirectory() as folder:
        async with Watched() as client:
            target = Target(mock.url, "mock", vocabulary=32000)
            report = await measure(
                target, load, trial_seed=1, folder=Path(folder), client=client, limit=WAVES * streams
            )
            (header,) = (item.header for item in client.results)
        samples = report.levels[0].samples
        assert samples is not None
        records, truth = read_records(samples), mock.truth()
    sent = records.column("sent")
    ttft = np.sort(records.column("first") - sent) * 1e3 - np.sort(truth.ttft_ms)
    e2e = (np.sort(records.column("last") - sent) - np.sort(truth.last - truth.received)) * 1e3
    handed_over = (np.sort(truth.received)[streams:] - np.sort(truth.last)[: len(truth.last) - streams]) * 1e3
    cost = float(str(header["cpu"])) / int(str(header["chunks"])) * 1e6
    return (
        f"{streams} streams, share {share:g}: {cost:.1f} us a chunk; by rank TTFT {_spread(ttft)}, E2E {_spread(e2e)}; "
        f"next request after {np.median(handed_over):.1f} ms (p99 {np.percentile(handed_over, 99):.1f})"
    )


def _spread(errors: np.ndarray) -> str:
    size = np.abs(errors)
    return f"p50 {np.median(size):.3f}, p99 {np.percentile(size, 99):.3f}, at most {size.max():.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step", type=float, default=10.0, help="milliseconds from token to token")
    parser.add_argument("--shares", default="1,0.125")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    server = cores[1] if len(cores) > 1 else None
    os.sched_setaffinity(0, {cores[0]})
    for _ in range(options.rounds):
        for share in options.shares.split(","):
            print(asyncio.run(one(float(share), options.streams, options.step, server)), flush=True)


if __name__ == "__main__":
    main()
