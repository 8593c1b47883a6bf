"""Run all fault tests and write the table of the docs: ``python tests/faults/table.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "faults.md"
HEAD = """# Faults that are played, and what is left after each

Every row is a test that plays the fault and then looks for processes, leases, records and temporary folders that are
left. Where a study runs, it then goes on without the fault, and every trial that was finished before must still be in
it, unchanged. Regenerate the table with `python tests/faults/table.py`.

The engine here is the simulator, whose processes, log lines and routes are vLLM's. What needs the real vLLM is played
in `tests/engine`: `test_vllm_process.py` kills its processes, `test_study_real.py` kills a tuner while the real engine
starts, and `test_hostile_space.py` runs a study whose space is full of traps: refused by the preflight, refused by
vLLM alone, more KV cache than memory, a start that never ends, a hang under load.

| fault | variant | result | seconds |
|---|---|---|---|
"""


class Collector:
    """Takes down what pytest reports; a test that leaves something fails in its teardown."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.skipped:
            self.skipped.add(report.nodeid)
        if report.failed:
            self.failed[report.nodeid] = "something is left" if report.when == "teardown" else "fails"

    def rows(self) -> Iterator[str]:
        for node, seconds in self.seconds.items():
            name, _, variant = node.rpartition("::")[2].partition("[")
            words = name.removeprefix("test_").replace("_", " ")
            passed = "not played on this host" if node in self.skipped else "nothing left, outcome right"
            result = self.failed.get(node, passed)
            yield f"| {words} | {variant.rstrip(']')} | {result} | {seconds:.1f} |"


def main() -> int:
    """Run and write; the exit code is pytest's."""
    collector = Collector()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(HERE)], plugins=[collector])
    rows = list(collector.rows())
    passed = len(rows) - len(collector.failed) - len(collector.skipped)
    TABLE.write_text(HEAD + "\n".join(rows) + f"\n\n{passed} of {len(rows)} pass.\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
