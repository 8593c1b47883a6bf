"""What is read from NVML, from a driver that is played under its public names."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from autotune.engine.protocol import Resolved
from autotune.host.gpus import Gpu, GpuHost, Link, NvmlGpus
from autotune.host.topology import nearest, tensor_links
from autotune.space.config import EngineConfig
from autotune.trial import with_link_warning

GIB = 1 << 30
P2P = {(0, 1): 0, (2, 3): 0}
"""Pairs with an NVLink (status OK); all others are not supported."""
ANCESTOR = {(0, 1): 20, (2, 3): 20, (0, 2): 40, (0, 3): 50, (1, 2): 30, (1, 3): 50}
"""As nvidia-smi topo -m says it: PXB, NODE, SYS, PHB."""


class NVMLError(Exception):
    pass


def played(*, lost: str = "") -> ModuleType:
    """A driver with four cards; `lost` is a question that it does not know."""
    nvml = ModuleType("pynvml")

    def pair(one: int, other: int) -> tuple[int, int]:
        return (min(one, other), max(one, other))

    def fails(*arguments: object) -> None:
        raise NVMLError("not supported")

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetCount": lambda: 4,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(total=80 * GIB, used=GIB),
        "nvmlDeviceGetName": lambda index: b"NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetNumaNodeId": lambda index: index // 2,
        "nvmlDeviceGetP2PStatus": lambda one, other, what: P2P.get(pair(one, other), 5),
        "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: ANCESTOR[pair(one, other)],
    }
    for name, answer in answers.items():
        setattr(nvml, name, fails if name == lost else answer)
    nvml.NVMLError = NVMLError
    nvml.NVML_P2P_CAPS_INDEX_NVLINK, nvml.NVML_P2P_STATUS_OK, nvml.NVML_TOPOLOGY_SYSTEM = 2, 0, 50
    return nvml


def test_a_trial_is_warned_of_the_links_of_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    host = GpuHost(read(monkeypatch))
    pair, four = EngineConfig.of({"tensor_parallel_size": 2}), EngineConfig.of({"tensor_parallel_size": 4})
    resolved = Resolved(version="0.32.0")
    linked, apart = tensor_links(host.at((0, 1))), tensor_links(host.at((1, 2)))
    assert with_link_warning(resolved, pair, linked) == resolved
    assert with_link_warning(resolved, pair, apart).warnings == (
        "2 tensor parallel ranks talk over PCIe, not over NVLink",
    )
    assert with_link_warning(resolved, four, tensor_links(host.at((0, 1, 2, 3)))).warnings == (
        "4 tensor parallel ranks talk across sockets",
    )
    assert [gpu.index for gpu in host.at((3, 0, 9))] == [3, 0], "in the order of the lease; what is gone is left out"


def read(monkeypatch: pytest.MonkeyPatch, **options: str) -> tuple[Gpu, ...]:
    monkeypatch.setitem(sys.modules, "pynvml", played(**options))
    host = NvmlGpus().read()
    assert host.problem == ""
    return host.gpus


def test_links_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = read(monkeypatch)
    assert gpus[0].links == (Link(1, "nvlink"), Link(2, "pcie"), Link(3, "numa")), "NODE is one socket, SYS two"
    assert gpus[1].links == (Link(0, "nvlink"), Link(2, "pcie"), Link(3, "numa"))
    assert [gpu.numa_node for gpu in gpus] == [0, 0, 1, 1]
    assert (gpus[0].name, gpus[0].memory_total) == ("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert tensor_links(nearest(gpus, 4)) == {2: "nvlink", 3: "pcie", 4: "numa"}


def test_a_driver_that_does_not_tell_the_way_counts_as_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = read(monkeypatch, lost="nvmlDeviceGetTopologyCommonAncestor")
    assert {link.kind for link in gpus[0].links} == {"nvlink", "pcie"}
    without = read(monkeypatch, lost="nvmlDeviceGetP2PStatus")
    assert [link.kind for link in without[0].links] == ["pcie", "pcie", "numa"]


def test_a_driver_that_lists_no_cards_is_a_problem_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", played(lost="nvmlDeviceGetCount"))
    assert NvmlGpus().read().problem == "NVML: not supported"
