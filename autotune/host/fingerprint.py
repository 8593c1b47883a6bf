"""What a measurement depends on beside its configuration. Two equal fingerprints may be compared, others not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import autotune
from autotune.host.gpus import GpuHost, read_gpus

Fingerprint = tuple[tuple[str, str], ...]
HARD = ("gpu", "gpus", "driver", "engine", "model_config", "model_revision", "cpu")
"""Entries whose change makes old figures incomparable; the others only explain a drift."""


def fingerprint(
    *,
    model: str = "",
    revision: str | None = None,
    engine: str = "",
    host: GpuHost | None = None,
    extra: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The fingerprint of this host, sorted by name; what is not known is left out.

    Args:
        model: Hugging Face id, folder or simulator's name.
        revision: of the model, where the study names one.
        engine: version of vLLM.
        host: GPUs as read before; default: read now.
        extra: more entries, such as a hash of the load.
    """
    found = host if host is not None else read_gpus()
    config = model_config(model, revision)
    entries = {
        "autotune": autotune.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cpus": str(usable_cpus()),
        "memory_gib": f"{memory_bytes() / 2**30:.0f}",
        "gpu": _same(gpu.name for gpu in found.gpus),
        "gpus": str(len(found.gpus)),
        "gpu_memory_gib": _same(f"{gpu.memory_total / 2**30:.0f}" for gpu in found.gpus),
        "gpu_uuids": ",".join(gpu.uuid for gpu in found.gpus),
        "gpu_power_limit_watts": _same(f"{gpu.power_limit_watts:.0f}" for gpu in found.gpus),
        "driver": found.driver,
        "cuda": found.cuda,
        "engine": engine,
        "model": model,
        "model_config": hashlib.sha256(config.read_bytes()).hexdigest()[:12] if config else "",
        "model_revision": _revision(config) or revision or "",
        **(extra or {}),
    }
    return tuple(sorted((name, value) for name, value in entries.items() if value))


def differences(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """What has changed between two fingerprints, one sentence each."""
    old, new = dict(before), dict(after)
    return tuple(
        f"{name}: {old.get(name, 'unknown')} before, {new.get(name, 'unknown')} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def model_folder(model: str, revision: str | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder with a model's files: the model itself, or its snapshot in the Hugging Face cache."""
    if not model:
        return None
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if model.count("/") != 1:
        return None
    env = os.environ if environ is None else environ
    home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    cache = Path(env.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    wanted = revision or "main"
    with contextlib.suppress(OSError):  # a commit has no ref of its own
        wanted = (cache / "refs" / wanted).read_text().strip()
    snapshot = cache / "snapshots" / wanted
    return snapshot if (snapshot / "config.json").is_file() else None


def model_config(model: str, revision: str | None = None) -> Path | None:
    """Path of a model's config.json where it is on this host."""
    folder = model_folder(model, revision)
    return folder / "config.json" if folder is not None else None


def cpu_name() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Hardware", "CPU part")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of the host in bytes, 0 where unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _revision(config: Path | None) -> str:
    """The commit, where the file lies in a snapshot of the Hugging Face cache."""
    if config is None or config.parent.parent.name != "snapshots":
        return ""
    return config.parent.name


def _same(values: object) -> str:
    assert hasattr(values, "__iter__")
    return " + ".join(sorted({str(value) for value in values}))
