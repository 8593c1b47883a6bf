"""What keeps a pass off the GPUs."""

from __future__ import annotations

import pytest

from autotune.host.gpus import Gpu, GpuHost, GpuProcess
from autotune.retune.guard import obstacles
from autotune.spec.retune import RetuneSpec
from autotune.spec.study import StudySpec

GIB = 1 << 30
IDLE = Gpu(0, "GPU-a", "H200", 140 * GIB, 0)
SERVING = Gpu(1, "GPU-b", "H200", 140 * GIB, 90 * GIB, (GpuProcess(77, 90 * GIB, "VLLM::EngineCore"),))
HIDDEN = Gpu(2, "GPU-c", "H200", 140 * GIB, 60 * GIB)
DISPLAY = Gpu(3, "GPU-d", "H200", 140 * GIB, 1 * GIB, (GpuProcess(9, GIB // 4, "Xorg"),))


def study(hardware: dict[str, object], **engine: object) -> StudySpec:
    return StudySpec.model_validate({"name": "s", "model": "m/m", "hardware": hardware, "engine": engine})


@pytest.mark.parametrize(
    ("hardware", "gpus", "words"),
    [
        ({"gpus": 1}, (IDLE, SERVING), ()),
        ({"gpus": 2}, (IDLE, SERVING), ("process 77 (VLLM::EngineCore)",)),
        ({"devices": [1]}, (IDLE, SERVING), ("process 77",)),
        ({}, (IDLE, HIDDEN), ("60.0 GiB are in use by processes that are not shown",)),
        ({"gpus": 2}, (IDLE, DISPLAY), ()),
        ({}, (SERVING, HIDDEN), ("process 77", "not shown")),
    ],
)
def test_enough_idle_gpus_are_wanted(
    hardware: dict[str, object], gpus: tuple[Gpu, ...], words: tuple[str, ...]
) -> None:
    found = obstacles(study(hardware), RetuneSpec(), GpuHost(gpus))
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True))


def test_a_service_on_the_same_processors_is_in_the_way() -> None:
    here = RetuneSpec.model_validate({"triggers": {"metrics_url": "http://127.0.0.1:8000"}})
    elsewhere = RetuneSpec.model_validate({"triggers": {"metrics_url": "http://10.0.0.7:8000"}})
    cpu = study({"gpus": 0}, python="cpu")
    assert "processors" in obstacles(cpu, here, GpuHost())[0]
    assert obstacles(cpu, elsewhere, GpuHost()) == ()


def test_a_simulated_engine_takes_nothing() -> None:
    assert obstacles(study({}, kind="simulated"), RetuneSpec(), GpuHost((SERVING,))) == ()
