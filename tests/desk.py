"""A desk to try the real command line at: a folder, a process of its own for every command, a look at what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import autotune
from autotune.engine.runs import START_VARIABLE
from autotune.host.leases import LeaseBook
from autotune.host.processes import command_line, environment_value, own_pids, start_ticks

STUDY = """\
name: tiny
model: llama-3.1-8b
engine:
  kind: simulated
  simulate: {card: h100, speed: 20, startup: 0.02, noise: 0%}
hardware: {gpus: 1}
space:
  name: tiny
  parameters:
    max_num_seqs: {ladder: [2, 4, 8, 64]}
    max_num_batched_tokens: {ladder: [64, 512, 2048]}
    quantization: {choice: [null, fp8]}
load:
  input_tokens: 64
  output_tokens: 16
  arrivals: closed
  levels: [4]
  warmup: {requests: 4, max_duration: 5s, tolerance: 50%}
  window: {duration: 4s, requests: 40}
objectives:
  - metric: output_throughput
  - metric: ttft
    percentile: 90
quality: {enabled: false}
search: {trials: 5, sentinel_every: 0, proposer: random}
confirm: {rounds: 2, finalists: 1, minimise: false}
"""
VIRTUAL = STUDY.replace("speed: 20, startup: 0.02", "clock: virtual")
"""The same on a virtual clock: no processes, a few seconds, and equal to the last digit when it is repeated."""
RUN_S = 110
"""A whole study takes 15 s on a quiet machine."""


@dataclass
class Desk:
    """A folder to work in, with a state folder and a temporary folder that nobody else uses."""

    folder: Path
    scratch: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """Set for every command from now on."""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "AUTOTUNE_STATE": str(self.state),
            "TMPDIR": str(self.scratch),
            "COLUMNS": "120",
            **self.variables,
            **more,
        }

    def write(self, text: str = STUDY, name: str = "tiny.yaml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def run(self, *words: str, timeout: float = RUN_S) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        command = [sys.executable, "-m", "autotune", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=timeout
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command in a process group of its own, as a shell would start it; killed at the end of the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", *words], cwd=self.folder, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        self.started.append(process)
        return process

    def result(self, name: str = "tiny.yaml") -> autotune.StudyResult:
        return autotune.read(self.folder / name)

    def processes(self) -> list[int]:
        """Everything alive that was started from this desk."""
        state = str(self.state)
        found = [pid for pid in own_pids() if environment_value(pid, "AUTOTUNE_STATE") == state]
        return [pid for pid in found if start_ticks(pid) is not None and pid != os.getpid()]

    def engines(self) -> list[int]:
        return [pid for pid in self.processes() if environment_value(pid, START_VARIABLE)]

    def left(self) -> list[str]:
        """Processes, temporary files, leases: what should not be there any more."""
        found = [f"process {pid}: {command_line(pid)}" for pid in self.processes()]
        found += [f"file {path}" for path in self.scratch.iterdir()]
        found += [f"lease {holder.resource}" for holder in LeaseBook(self.state / "leases").holders()]
        return found

    def wait_until_nothing_is_left(self, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == [], left

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


def events(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """The events of `autotune run --json` as they come."""
    for line in stream:
        yield json.loads(line)


def wait_for_event(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Read events until one is wanted; all that were read."""
    assert process.stdout is not None
    seen = []
    for event in events(process.stdout):
        seen.append(event)
        if wanted(event):
            return seen
    raise AssertionError(
        f"it ended with {process.wait()} before that: {process.stderr.read() if process.stderr else ''}"
    )
