"""Tune from Python: run a study, look at the front, print what to start. Run it with `python examples/python_api.py`.

The study is the demonstration on a simulated card, so this needs no GPU and ends within two minutes. Give it another
study file as its argument to tune something real.
"""

from __future__ import annotations

import sys
from pathlib import Path

import autotune
from autotune.events import TrialFinished

DEMO = Path(__file__).resolve().parents[1] / "studies" / "demo.yaml"


class Log:
    """An observer: prints a line for every trial that has ended."""

    def notify(self, event: autotune.Event) -> None:
        if isinstance(event, TrialFinished):
            record = event.record
            print(f"trial {record.number} ({record.proposal.origin}): {record.outcome.kind}, {record.seconds:.0f} s")


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO
    study = autotune.load_study(path, {"search.trials": 5})
    try:
        autotune.tune(study, observer=Log())
    except autotune.AutotuneError as error:
        print(error, file=sys.stderr)
        return error.exit_code

    result = autotune.read(study)  # the same as what tune() returned; here to show that results are kept
    print(result.front_frame().to_string())
    print(*result.summary, sep="\n")
    if result.recommendation is not None:
        for change in result.recommendation.config.changes_from(result.recommendation.baseline):
            print(f"{change.name}: {change.before} -> {change.after}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
