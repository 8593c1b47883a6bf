"""``python -m autotune.engine.cpu_setup [--cache DIR] [--check]``: prepare the CPU engine and its model.

Exit status: 0 ready; 2 a step failed, try again; 3 this machine cannot run it; 130 or 143 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from autotune.engine.cpu_setup.installation import ensure
from autotune.engine.cpu_setup.layout import cache_root, locate
from autotune.errors import EnvironmentFault

DESCRIPTION: Final = "Prepare a real vLLM for CPUs and a small real model, once, in a cache folder."


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m autotune.engine.cpu_setup", description=DESCRIPTION)
    parser.add_argument("--cache", type=Path, default=None, help=f"folder to prepare it in (default {cache_root()})")
    parser.add_argument("--check", action="store_true", help="only say whether it is ready; status 1 if it is not")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _on_terminate)
    if options.check and locate(options.cache) is None:
        print("The CPU engine is not prepared; run: python -m autotune.engine.cpu_setup")
        return 1
    try:
        engine = ensure(options.cache, say=lambda line: print(line, flush=True))
    except EnvironmentFault as fault:
        print(f"\n{fault}", file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print("\nInterrupted; the next set-up begins anew.", file=sys.stderr)
        return 130
    print(f"CPU engine ready: vLLM {engine.version}, {engine.python}, model {engine.model}")
    return 0


def _on_terminate(number: int, frame: FrameType | None) -> None:
    # An exception, so that the running installer is stopped before this process ends.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
