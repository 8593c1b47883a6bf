"""Asks the vLLM that an interpreter has installed for its arguments; keeps answers by version and interpreter."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from autotune.errors import EnvironmentFault
from autotune.space.arguments import ArgumentTable

TIMEOUT = 180.0
"""Longest time for vLLM's imports, in seconds (6 to 30 on two cores)."""
_SCRIPT = Path(__file__).with_name("probe_script.py")
_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def installed_version(python: str) -> str:
    """Version of the vLLM in that interpreter, such as `0.32.0`. Takes a fraction of a second.

    Raises:
        EnvironmentFault: there is no such interpreter, or no vLLM in it.
    """
    return _run(python, ["version"], 30.0).strip()


def probe(python: str, cache_dir: Path) -> ArgumentTable:
    """The arguments that the vLLM of `python` understands, from its own parser.

    Args:
        python: path or name of the interpreter.
        cache_dir: where answers are kept; a new version or a changed interpreter asks again.

    Raises:
        EnvironmentFault: there is no such interpreter, no vLLM in it, or its parser cannot be built.
    """
    version = installed_version(python)
    path = cache_dir / f"arguments-{version}-{_identity(python)}.json"
    cached = _read(path)
    if cached is not None:
        return cached
    with tempfile.TemporaryDirectory(prefix="autotune-probe-") as folder:
        answer = Path(folder) / "arguments.json"
        _run(python, ["arguments", str(answer)], TIMEOUT)
        try:
            text = answer.read_text(encoding="utf-8")
            table = ArgumentTable.from_json(text)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"vLLM {version} in {python} gave no arguments: {error}") from error
    _keep(path, text)
    return table


def _identity(python: str) -> str:
    """The interpreter's path, time and that of its site packages, so that an update is seen."""
    path = Path(shutil.which(python) or python)
    places = [path, *sorted(path.absolute().parent.parent.glob("lib/python3*/site-packages"))]
    text = "|".join(f"{place.absolute()}:{place.stat().st_mtime_ns}" for place in places if place.exists())
    # A new probe script asks again too.
    return hashlib.sha256(f"{text}|{_SCRIPT.read_text(encoding='utf-8')}".encode()).hexdigest()[:12]


def _read(path: Path) -> ArgumentTable | None:
    try:
        return ArgumentTable.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _keep(path: Path, text: str) -> None:
    """Write in one step, since several studies may ask at once; a full disk costs only the next probe's time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as stream:
            stream.write(text)
        Path(stream.name).replace(path)
    except OSError:
        return


def _run(python: str, args: list[str], timeout: float) -> str:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            done = subprocess.run(
                [python, str(_SCRIPT), *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=timeout,
                env={**os.environ, **_QUIET},
                check=False,
            )
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"cannot run {python}: {error}", hint="Check engine.python.") from error
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFault(f"vLLM in {python} did not show its arguments in {timeout:.0f} s") from error
        if done.returncode != 0:
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            last = lines[-1].strip() if lines else f"exit code {done.returncode}"
            hint = "Install vLLM there, or name another interpreter in engine.python."
            raise EnvironmentFault(f"cannot ask the vLLM of {python}: {last}", hint=hint)
        return done.stdout
