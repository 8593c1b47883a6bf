"""Whether a pass may take GPUs now. Pure: it looks at values; foreign processes are named and never touched."""

from __future__ import annotations

from urllib.parse import urlsplit

from autotune.host.gpus import Gpu, GpuHost
from autotune.host.leases import FOREIGN_BYTES, foreign_uses
from autotune.spec.retune import RetuneSpec
from autotune.spec.study import StudySpec

HIDDEN_BYTES = 2 << 30
"""More memory than this in use while no process is shown: somebody in another container is there."""


def obstacles(spec: StudySpec, retune: RetuneSpec, host: GpuHost) -> tuple[str, ...]:
    """What speaks against a start now, one sentence each; empty where enough GPUs are idle.

    The production service counts as foreign work on the GPUs. On the CPU engine it shares the processors, so there a
    service on this host is in the way as well.
    """
    if spec.engine.kind in ("simulated", "endpoint"):
        return ()
    if spec.engine.python == "cpu":
        beside = _on_this_host(retune.triggers.metrics_url)
        return ("the production service runs on the processors that the study would measure",) if beside else ()
    wanted = [gpu for gpu in host.gpus if spec.hardware.devices is None or gpu.index in spec.hardware.devices]
    count = spec.hardware.gpus if spec.hardware.gpus is not None else len(wanted)
    busy = {gpu.index: text for gpu in wanted if (text := _busy(gpu, host))}
    return tuple(busy.values()) if len(wanted) - len(busy) < count else ()


def _busy(gpu: Gpu, host: GpuHost) -> str:
    """Who is on a GPU, empty where nobody is."""
    uses = [str(use) for use in foreign_uses(host) if use.gpu == gpu.index and use.memory > FOREIGN_BYTES]
    if uses:
        return "; ".join(uses)
    if not gpu.processes and gpu.memory_used > HIDDEN_BYTES:
        return f"GPU {gpu.index}: {gpu.memory_used / 2**30:.1f} GiB are in use by processes that are not shown here"
    return ""


def _on_this_host(url: str | None) -> bool:
    return url is not None and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
