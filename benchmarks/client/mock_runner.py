"""Builds and runs the mock server, and reads what it knows about every request."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Truth:
    """What the server did: arrays with one entry a request, times in CLOCK_MONOTONIC seconds.

    A request is received when the server's kernel has all of it; `read` is when the server took it from there.
    """

    received: np.ndarray
    first: np.ndarray
    last: np.ndarray
    tokens: np.ndarray
    read: np.ndarray

    @property
    def ttft_ms(self) -> np.ndarray:
        return (self.first - self.received) * 1e3


@dataclass(frozen=True)
class Mock:
    url: str
    pid: int

    def get(self, route: str) -> str:
        with urllib.request.urlopen(self.url + route, timeout=30) as answer:
            return str(answer.read().decode())

    def reset(self) -> None:
        self.get("/reset")

    def truth(self) -> Truth:
        """The finished requests since the last reset."""
        rows = [line.split(",") for line in self.get("/log").splitlines() if line]
        table = np.array([[float(item) for item in row] for row in rows]).reshape(-1, 5)
        table = table[table[:, 3] > 0]
        return Truth(table[:, 0] / 1e9, table[:, 1] / 1e9, table[:, 2] / 1e9, table[:, 3], table[:, 4] / 1e9)


def compiler() -> str | None:
    """The C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def built(name: str, folder: Path) -> Path:
    """The program of NAME.c beside this file, compiled into a folder."""
    cc = compiler()
    if cc is None:
        raise SystemExit(f"a C compiler is needed for {name}.c (cc)")
    program = folder / name
    subprocess.run([cc, "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
    return program


@contextmanager
def running_mock(ttft_ms: float, step_ms: float, *, core: int | None = None) -> Iterator[Mock]:
    """Build the server and run it on a free port, bound to one core where asked."""
    with tempfile.TemporaryDirectory(prefix="mock-") as folder:
        program = built("mock_server", Path(folder))
        pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
        process = subprocess.Popen(
            [*pin, str(program), "0", str(round(ttft_ms * 1000)), str(round(step_ms * 1000))],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Mock(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
            process.wait(10)
