"""What can be wrong with GPUs, their driver and their links. Pure: takes values, gives findings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

from autotune.host.facts import Installation
from autotune.host.findings import Finding, error, note, ok, warning
from autotune.host.gpus import Gpu, GpuHost
from autotune.host.leases import FOREIGN_BYTES, foreign_uses

_IDLE_BYTES = 1 << 30
_HOT = 83
"""Degrees Celsius of an idle card that leave no headroom."""


@cache
def _table() -> dict[str, dict[str, int]]:
    text = resources.files("autotune.host").joinpath("clashes.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return {name: data[name] for name in ("oldest_driver", "matching_driver")}


@cache
def _clashes() -> tuple[dict[str, str], ...]:
    text = resources.files("autotune.host").joinpath("clashes.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["clash"])


def check_gpus(
    host: GpuHost, wanted: int | None, devices: Sequence[int] | None, ours: Sequence[int] = ()
) -> list[Finding]:
    """Findings about the cards that a study wants; `wanted` None means all that there are."""
    if not host.gpus:
        if wanted == 0:
            return []
        return [
            error(
                "gpu",
                f"no GPU is visible: {host.problem or 'NVML shows none'}",
                "Install the driver or pass the cards to the container (`--gpus all`); without a GPU use "
                "`engine.python: cpu` or `engine.kind: simulated`.",
            )
        ]
    chosen = [gpu for gpu in host.gpus if devices is None or gpu.index in devices]
    if wanted is not None and len(chosen) < wanted:
        chosen_text = f"the study wants {wanted} GPUs and {len(chosen)} are there"
        return [error("gpu", chosen_text, "Correct `hardware.gpus` or `hardware.devices`.")]
    findings = [*_foreign(host, chosen, wanted, ours)]
    for gpu in chosen:
        findings += _card(gpu)
    findings += _links(chosen, wanted if wanted is not None else len(chosen))
    if len({gpu.name for gpu in chosen}) > 1:
        names = ", ".join(sorted({gpu.name for gpu in chosen}))
        findings.append(
            warning("gpu_kinds", f"the cards differ: {names}", "Choose equal ones with `hardware.devices`.")
        )
    return findings or [ok("gpu", f"{len(chosen)} x {chosen[0].name}, driver {host.driver}: in order")]


def check_versions(host: GpuHost, installed: Installation) -> list[Finding]:
    """Does the driver carry the CUDA that torch was built with, and is vLLM of a known version?"""
    findings: list[Finding] = []
    if not installed.vllm:
        return [
            error("vllm", "vLLM is not installed in the engine's interpreter", "Install `vllm-autotune[vllm]` there.")
        ]
    for clash in _clashes():
        if clash["package"] == "vllm" and _applies(clash, installed.vllm):
            findings.append(warning("vllm", clash["text"].format(version=installed.vllm), clash["fix"]))
    if host.driver and installed.cuda:
        findings += _driver(int(host.driver.partition(".")[0]), host.driver, installed.cuda)
    return findings or [ok("vllm", f"vLLM {installed.vllm}, torch {installed.torch}")]


def _applies(clash: dict[str, str], version: str) -> bool:
    numbers = _numbers(version)
    return ("below" in clash and numbers < _numbers(clash["below"])) or (
        "from" in clash and numbers >= _numbers(clash["from"])
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


def _driver(branch: int, driver: str, cuda: str) -> Iterator[Finding]:
    oldest = _table()["oldest_driver"].get(cuda.partition(".")[0])
    matching = _table()["matching_driver"].get(".".join(cuda.split(".")[:2]))
    if oldest is not None and branch < oldest:
        yield error(
            "driver",
            f"driver {driver} is too old for CUDA {cuda}, which torch was built with",
            f"Install driver {oldest} or newer, or a torch for an older CUDA.",
        )
    elif matching is not None and branch < matching:
        yield warning(
            "driver",
            f"driver {driver} is older than CUDA {cuda}: kernels compiled on demand (PTX, FlashInfer) can fail",
            f"Install driver {matching} or newer.",
        )


def _foreign(host: GpuHost, chosen: Sequence[Gpu], wanted: int | None, ours: Sequence[int]) -> Iterator[Finding]:
    indices = {gpu.index for gpu in chosen}
    uses = [use for use in foreign_uses(host, ours) if use.gpu in indices]
    heavy = {use.gpu for use in uses if use.memory > FOREIGN_BYTES}
    enough = wanted is not None and len(indices - heavy) >= wanted
    for use in uses:
        fix = "End it, or choose other cards with `hardware.devices`; this tool never touches it."
        serious = use.gpu in heavy and not enough
        yield (error if serious else warning)("gpu_foreign", str(use), fix)
    for gpu in chosen:
        if gpu.memory_used > _IDLE_BYTES and not gpu.processes:
            yield warning(
                "gpu_memory",
                f"GPU {gpu.index} has {gpu.memory_used / 2**30:.1f} GiB in use and shows no process",
                "A process of another container or a crashed one holds it: `fuser -v /dev/nvidia*`, or reset the card.",
            )


def _card(gpu: Gpu) -> Iterator[Finding]:
    name = f"GPU {gpu.index}"
    if gpu.ecc_errors:
        yield error(
            "gpu_ecc", f"{name} counts {gpu.ecc_errors} uncorrectable memory errors", "Reset or replace the card."
        )
    if gpu.throttle:
        yield warning(
            "gpu_throttle",
            f"{name} is slowed down now: {', '.join(gpu.throttle)}",
            "Look at cooling and power (`nvidia-smi -q -d PERFORMANCE`); measure when it has ended.",
        )
    if gpu.temperature >= _HOT:
        yield warning(
            "gpu_temperature", f"{name} has {gpu.temperature} degrees Celsius", "Let it cool, look at the fans."
        )
    if gpu.power_default_watts and gpu.power_limit_watts < 0.98 * gpu.power_default_watts:
        yield warning(
            "gpu_power",
            f"{name} is capped at {gpu.power_limit_watts:.0f} W of {gpu.power_default_watts:.0f} W",
            f"Measure with production's cap, or: `nvidia-smi -i {gpu.index} -pl {gpu.power_default_watts:.0f}`.",
        )
    if gpu.persistence is False:
        text = f"{name}: persistence mode is off, so each start wakes the driver first"
        yield note("gpu_persistence", text, f"`nvidia-smi -i {gpu.index} -pm 1`")
    if gpu.mig:
        yield note("gpu_mig", f"{name} is split (MIG): its figures hold for slices of the same size only")


def _links(chosen: Sequence[Gpu], wanted: int) -> Iterator[Finding]:
    if wanted < 2:
        return
    pairs = {
        (gpu.index, link.other): link.kind
        for gpu in chosen
        for link in gpu.links
        if gpu.index < link.other and any(other.index == link.other for other in chosen)
    }
    slow = [pair for pair, kind in pairs.items() if kind != "nvlink"]
    if slow and len(slow) < len(pairs):
        first = slow[0]
        yield warning(
            "gpu_links",
            f"{len(slow)} of {len(pairs)} pairs of cards have no NVLink, such as {first[0]} and {first[1]}",
            "Choose linked cards with `hardware.devices`; tensor parallel across a slow link spoils the comparison.",
        )
    elif slow:
        yield note("gpu_links", "the cards reach each other over PCIe only: expect little from tensor parallel")
    nodes = {gpu.numa_node for gpu in chosen if gpu.numa_node is not None}
    if len(nodes) > 1 and wanted < len(chosen):
        yield note("gpu_numa", f"the cards hang on {len(nodes)} NUMA nodes; the lease prefers neighbours")
