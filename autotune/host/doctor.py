"""What will spoil a study on this host before it starts, each with the fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import EnvironmentFault
from autotune.host.facts import HostFacts, free_bytes, read_host, read_installation
from autotune.host.findings import Finding, Level, error, note, ok, warning
from autotune.host.fingerprint import model_folder
from autotune.host.gpuchecks import check_gpus, check_versions
from autotune.host.gpus import GpuHost, read_gpus
from autotune.host.leases import PORTS, LeaseBook
from autotune.host.modelfiles import check_model_files, weight_bytes
from autotune.host.state import state_dir
from autotune.spec.study import StudySpec

GIB = 1 << 30
_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2, Level.OK: 3}
_STEADY_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "arm_arch_counter", "xen")


def diagnose(
    spec: StudySpec | None = None,
    *,
    python: Path | None = None,
    folder: Path | None = None,
    gpus: GpuHost | None = None,
    host: HostFacts | None = None,
) -> tuple[Finding, ...]:
    """Examine this host.

    Args:
        spec: the study that is to run here; without one, only the host is looked at.
        python: the engine's interpreter, where it is known better than the study says (`cpu`).
        folder: where results go.
        gpus, host: values read before; default: read now.

    Returns:
        Findings, the worst first. Nothing is changed and nothing raises.
    """
    facts = host if host is not None else read_host()
    cards = gpus if gpus is not None else read_gpus()
    findings = [
        *_memory(facts),
        *_processors(facts),
        *_limits(facts),
        *_shared_memory(facts, cards),
        *_network(facts),
        *_state(),
        *_disk("results", folder or Path.cwd(), 1 * GIB, 5 * GIB),
        *_disk("caches", Path.home(), 2 * GIB, 20 * GIB),
    ]
    if spec is None:
        findings += check_gpus(cards, 0 if not cards.gpus else None, None)
    elif spec.engine.kind in ("vllm", "command"):
        findings += _engine(spec, python, cards)
    if spec is not None and spec.engine.kind == "vllm":
        findings += _model(spec)
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.level]))


def exit_code(findings: tuple[Finding, ...]) -> int:
    """1 where an error was found, else 0."""
    return int(any(finding.level is Level.ERROR for finding in findings))


def _engine(spec: StudySpec, python: Path | None, cards: GpuHost) -> Iterator[Finding]:
    on_cpu = spec.engine.python == "cpu"
    if not on_cpu and not spec.engine.elsewhere:
        yield from check_gpus(cards, spec.hardware.gpus, spec.hardware.devices)
    if spec.engine.kind == "vllm" and (python is not None or not on_cpu):
        interpreter = python or Path(spec.engine.python or sys.executable)
        if not os.access(interpreter, os.X_OK):
            yield error("interpreter", f"{interpreter} cannot be run", "Correct `engine.python`.")
        else:
            yield from check_versions(cards, read_installation(interpreter))
    elif on_cpu:
        yield error("interpreter", "the CPU engine is not set up", "python -m autotune.engine.cpu_setup")


def _model(spec: StudySpec) -> Iterator[Finding]:
    found = model_folder(spec.model, spec.revision)
    dummy = spec.engine.args.get("load_format") == "dummy"
    if found is not None:
        yield from check_model_files(found, chat=spec.load.api == "chat", dummy=dummy)
        if not dummy and (size := weight_bytes(found)):
            yield note("model_size", f"the weights take {size / GIB:.1f} GiB on disk")
    elif spec.model.count("/") == 1 and not Path(spec.model).is_absolute():
        if os.environ.get("HF_HUB_OFFLINE") == "1":
            yield error("model_files", f"{spec.model} is not in the cache and HF_HUB_OFFLINE is set", "Fetch it first.")
        else:
            yield warning(
                "model_files",
                f"{spec.model} is not on this host: the first start will download it",
                f"Fetch it before the study: `hf download {spec.model}`.",
            )


def _memory(facts: HostFacts) -> Iterator[Finding]:
    if facts.swap_used > GIB:
        yield warning(
            "swap",
            f"{facts.swap_used / GIB:.1f} GiB are swapped out",
            "Free memory, then `swapoff -a && swapon -a`; a swapping host cannot be measured.",
        )
    if facts.swappiness is not None and facts.swappiness > 60:
        yield note("swappiness", f"vm.swappiness is {facts.swappiness}", "`sysctl vm.swappiness=10`")
    if facts.memory_limit is not None:
        text = f"the container may use {facts.memory_limit / GIB:.1f} of the host's {facts.memory_total / GIB:.1f} GiB"
        yield note("memory_limit", text, "Loading weights needs about their size; raise `--memory` where that is more.")
    if facts.memory_total and facts.memory_available < 2 * GIB:
        yield error(
            "memory", f"only {facts.memory_available / GIB:.1f} GiB of memory are available", "End what is not needed."
        )
    elif facts.memory_total:
        yield ok("memory", f"{facts.memory_available / GIB:.1f} of {facts.memory_total / GIB:.1f} GiB are available")


def _processors(facts: HostFacts) -> Iterator[Finding]:
    slow = [governor for governor in facts.governors if governor not in ("performance", "schedutil")]
    if slow:
        yield warning(
            "governor",
            f"the CPU governor is {', '.join(slow)}",
            "`cpupower frequency-set -g performance`; clocks that wander are noise in every latency.",
        )
    if facts.cpu_quota is not None and facts.cpu_quota < facts.cpus:
        text = f"the container may use {facts.cpu_quota:g} of {facts.cpus} processors and is throttled above"
        yield warning("cpu_quota", text, "Pin whole processors (`--cpuset-cpus`) instead of a quota.")
    if facts.load > facts.cpus:
        yield warning(
            "load", f"the host is busy: load {facts.load:.1f} on {facts.cpus} processors", "Wait, or end other work."
        )
    if facts.cpus < 4:
        yield note("cpus", f"{facts.cpus} processors: client and engine share them, so expect noise")
    if facts.clock and facts.clock not in _STEADY_CLOCKS:
        yield warning(
            "clock",
            f"the clock source is {facts.clock}, which is slow to read",
            "Boot with `clocksource=tsc` if it is stable.",
        )


def _limits(facts: HostFacts) -> Iterator[Finding]:
    if facts.open_files is not None and facts.open_files < 4096:
        possible = facts.open_files_hard is None or facts.open_files_hard >= 65_536
        yield (warning if possible else error)(
            "open_files",
            f"{facts.open_files} open files are allowed; a load of that many requests fails",
            "`ulimit -n 65536`" + ("" if possible else " (as root: the hard limit is too low as well)"),
        )
    if facts.processes is not None and facts.processes < 4096:
        yield warning(
            "processes", f"{facts.processes} processes are allowed", "`ulimit -u 16384`; vLLM starts many threads."
        )


def _shared_memory(facts: HostFacts, cards: GpuHost) -> Iterator[Finding]:
    if facts.shm_total is None:
        return
    needed = max(1, len(cards.gpus)) * GIB
    if facts.shm_total < GIB // 2:
        yield error(
            "shm",
            f"shared memory (/dev/shm) has {facts.shm_total / 2**20:.0f} MiB; vLLM's processes talk through it",
            "Start the container with `--ipc=host` or `--shm-size=16g`.",
        )
    elif facts.shm_free is not None and facts.shm_free < needed:
        yield warning(
            "shm",
            f"shared memory (/dev/shm) has {facts.shm_free / GIB:.1f} GiB free",
            "Remove what dead processes left there (`autotune clean` removes ours), or enlarge it.",
        )


def _network(facts: HostFacts) -> Iterator[Finding]:
    if facts.ports is not None and facts.ports[0] < PORTS.stop and facts.ports[1] > PORTS.start:
        ours = f"{PORTS.start} to {PORTS.stop - 1}"
        yield note(
            "ports",
            f"outgoing connections take ports {facts.ports[0]} to {facts.ports[1]}, ours are {ours}",
            "`sysctl net.ipv4.ip_local_port_range='32768 60999'`",
        )


def _state() -> Iterator[Finding]:
    try:
        folder = state_dir()
        held = LeaseBook().holders()
    except (OSError, EnvironmentFault) as problem:
        yield error(
            "state", f"the state folder cannot be used: {problem}", "Set AUTOTUNE_STATE to a writable local folder."
        )
        return
    for holder in held:
        if holder.process.pid != os.getpid() and holder.resource.startswith("gpu-"):
            yield note("leases", f"{holder.resource} is leased by {holder.study} (pid {holder.process.pid})")
    yield ok("state", f"{folder} is writable")


def _disk(what: str, path: Path, least: int, good: int) -> Iterator[Finding]:
    free = free_bytes(path)
    if free is None:
        return
    if free < least:
        yield error(f"disk_{what}", f"{free / GIB:.1f} GiB are free for {what} at {path}", "Free some space.")
    elif free < good:
        yield warning(f"disk_{what}", f"only {free / GIB:.1f} GiB are free for {what} at {path}", "Free some space.")
