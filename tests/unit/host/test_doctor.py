"""The doctor names what will spoil a study, and says what to do."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from autotune.cli.doctor import doctor
from autotune.host.doctor import GIB, diagnose, exit_code
from autotune.host.facts import HostFacts, Installation, read_host, read_installation
from autotune.host.findings import Finding, Level, as_entries
from autotune.host.fingerprint import differences, fingerprint, model_folder
from autotune.host.gpuchecks import check_gpus, check_versions
from autotune.host.gpus import FakeGpus, Gpu, GpuHost, GpuProcess, Link, read_gpus
from autotune.host.modelfiles import check_model_files
from autotune.spec.study import StudySpec

GOOD = HostFacts(
    cpus=16,
    memory_total=128 * GIB,
    memory_available=100 * GIB,
    clock="tsc",
    governors=("performance",),
    open_files=1_048_576,
    processes=100_000,
    shm_total=64 * GIB,
    shm_free=60 * GIB,
    ports=(32_768, 60_999),
)
CARD = Gpu(0, "GPU-0", "NVIDIA H100", 80 * GIB, 0, power_limit_watts=700, power_default_watts=700, persistence=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))


def found(findings: tuple[Finding, ...] | list[Finding], level: Level = Level.WARNING) -> list[str]:
    return [finding.check for finding in findings if finding.level is level]


def study(**engine: object) -> StudySpec:
    return StudySpec.model_validate({"name": "s", "model": "org/m", "engine": engine})


def test_good_host_has_no_complaint() -> None:
    findings = diagnose(host=GOOD, gpus=GpuHost())
    assert found(findings) == found(findings, Level.ERROR) == []
    assert exit_code(findings) == 0


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"swap_used": 4 * GIB}, "swap", Level.WARNING),
        ({"swappiness": 100}, "swappiness", Level.NOTE),
        ({"memory_available": GIB}, "memory", Level.ERROR),
        ({"memory_limit": 8 * GIB}, "memory_limit", Level.NOTE),
        ({"governors": ("powersave",)}, "governor", Level.WARNING),
        ({"cpu_quota": 2.0}, "cpu_quota", Level.WARNING),
        ({"load": 40.0}, "load", Level.WARNING),
        ({"clock": "hpet"}, "clock", Level.WARNING),
        ({"open_files": 1024}, "open_files", Level.WARNING),
        ({"open_files": 1024, "open_files_hard": 1024}, "open_files", Level.ERROR),
        ({"processes": 512}, "processes", Level.WARNING),
        ({"shm_total": 64 << 20}, "shm", Level.ERROR),
        ({"shm_free": 100 << 20}, "shm", Level.WARNING),
        ({"ports": (1024, 65_535)}, "ports", Level.NOTE),
    ],
)
def test_each_complaint_comes_with_a_fix(change: dict[str, object], check: str, level: Level) -> None:
    findings = diagnose(host=replace(GOOD, **change), gpus=GpuHost())
    (finding,) = [finding for finding in findings if finding.check == check]
    assert finding.level is level
    assert finding.fix
    assert exit_code(findings) == (level is Level.ERROR)


def test_the_worst_comes_first() -> None:
    findings = diagnose(host=replace(GOOD, clock="hpet", shm_total=1), gpus=GpuHost())
    assert findings[0].level is Level.ERROR
    assert dict(as_entries(findings)).keys() == {"doctor.shm", "doctor.clock"}


def test_a_real_engine_without_a_card() -> None:
    findings = diagnose(study(kind="vllm", python="/does/not/exist"), host=GOOD, gpus=GpuHost(problem="no driver"))
    assert found(findings, Level.ERROR) == ["gpu", "interpreter"]
    assert found(findings) == ["model_files"]


def test_the_simulator_needs_none() -> None:
    assert exit_code(diagnose(study(kind="simulated"), host=GOOD, gpus=GpuHost(problem="no driver"))) == 0


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"ecc_errors": 3}, "gpu_ecc", Level.ERROR),
        ({"throttle": ("power cap",)}, "gpu_throttle", Level.WARNING),
        ({"temperature": 90}, "gpu_temperature", Level.WARNING),
        ({"power_limit_watts": 500.0}, "gpu_power", Level.WARNING),
        ({"persistence": False}, "gpu_persistence", Level.NOTE),
        ({"mig": True}, "gpu_mig", Level.NOTE),
        ({"memory_used": 20 * GIB}, "gpu_memory", Level.WARNING),
        ({"processes": (GpuProcess(7, 20 * GIB, "other"),)}, "gpu_foreign", Level.ERROR),
        ({"processes": (GpuProcess(7, 1 << 20, "Xorg"),)}, "gpu_foreign", Level.WARNING),
    ],
)
def test_cards(change: dict[str, object], check: str, level: Level) -> None:
    findings = check_gpus(GpuHost((replace(CARD, **change),)), 1, None)
    assert [(finding.check, finding.level) for finding in findings] == [(check, level)]


def test_a_busy_card_beside_free_ones_is_no_error() -> None:
    busy = replace(CARD, processes=(GpuProcess(7, 20 * GIB, "other"),))
    findings = check_gpus(GpuHost((busy, replace(CARD, index=1, uuid="GPU-1"))), 1, None)
    assert found(findings, Level.ERROR) == []


def test_a_slow_link_within_a_group() -> None:
    cards = (
        replace(CARD, links=(Link(1, "nvlink"), Link(2, "pcie"))),
        replace(CARD, index=1, links=(Link(0, "nvlink"), Link(2, "pcie"))),
        replace(CARD, index=2, links=(Link(0, "pcie"), Link(1, "pcie"))),
    )
    assert found(check_gpus(GpuHost(cards), 2, None)) == ["gpu_links"]
    assert found(check_gpus(GpuHost(cards), 2, [0, 1])) == []


@pytest.mark.parametrize(
    ("driver", "cuda", "level"),
    [
        ("550.54", "12.8", Level.WARNING),
        ("550.54", "13.0", Level.ERROR),
        ("580.1", "12.8", Level.OK),
        ("", "12.8", Level.OK),
    ],
)
def test_driver_and_cuda(driver: str, cuda: str, level: Level) -> None:
    (finding,) = check_versions(GpuHost((CARD,), driver), Installation("0.32.0", "2.13.0", cuda, True))
    assert finding.level is level


@pytest.mark.parametrize(
    ("version", "level"), [("0.25.1", Level.WARNING), ("0.33.2", Level.OK), ("0.34.0", Level.WARNING)]
)
def test_versions_that_are_known(version: str, level: Level) -> None:
    assert check_versions(GpuHost(), Installation(version, "2", "", True))[0].level is level


def test_installation_is_read_without_starting_it(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.12/site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch/version.py").write_text("cuda: Optional[str] = '12.8'\n")
    for name in ("vllm-0.32.0.dist-info", "torch-2.13.0.dist-info"):
        (packages / name).mkdir()
    assert read_installation(tmp_path / "bin/python") == Installation("0.32.0", "2.13.0", "12.8", True)
    assert read_installation(Path("/does/not/exist")) == Installation()


def test_container_limits_are_read(tmp_path: Path) -> None:
    for path, text in {
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
        "sys/fs/cgroup/memory.max": "102400",
        "sys/fs/cgroup/cpu.max": "150000 100000",
        "proc/sys/vm/swappiness": "60",
        "proc/loadavg": "1.5 1 1 1/2 3",
        "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999",
        ".dockerenv": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    facts = read_host(tmp_path)
    assert (facts.memory_total, facts.memory_limit, facts.cpu_quota) == (1_024_000, 102_400, 1.5)
    assert (facts.swap_used, facts.swappiness, facts.load, facts.container) == (6144, 60, 1.5, True)
    assert facts.ports == (32_768, 60_999)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    shard(folder / "model.safetensors")
    return folder


def shard(path: Path, tensor: int = 64) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [tensor // 4], "data_offsets": [0, tensor]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(tensor))


def test_complete_model(model: Path) -> None:
    assert found(check_model_files(model, chat=False), Level.OK) == ["model_files"]
    assert found(check_model_files(model, chat=True), Level.ERROR) == ["chat_template"]
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert found(check_model_files(model, chat=True), Level.ERROR) == []


def test_shard_that_was_cut_short(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (finding,) = check_model_files(model, chat=False)
    assert "its header says" in finding.text


def test_pointer_instead_of_weights(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 10\n")
    (finding,) = check_model_files(model, chat=False)
    assert "Git LFS pointer" in finding.text


def test_shard_that_the_index_names_is_missing(model: Path) -> None:
    index = {"weight_map": {"w": "model.safetensors", "v": "model-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (finding,) = check_model_files(model, chat=False)
    assert "model-00002.safetensors" in finding.text


def test_no_weights_and_no_tokenizer(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "tokenizer.json").unlink()
    assert found(check_model_files(model, chat=False), Level.ERROR) == ["model_tokenizer", "model_weights"]
    (model / "tokenizer.json").write_text("{}")
    assert found(check_model_files(model, chat=False, dummy=True), Level.ERROR) == []


def test_fingerprint_names_what_changed(model: Path) -> None:
    before = fingerprint(model=str(model), engine="0.32.0", host=GpuHost((CARD,), "570.1"))
    after = fingerprint(model=str(model), engine="0.32.0", host=GpuHost((CARD,), "580.2"))
    assert differences(before, after) == ("driver: 570.1 before, 580.2 now",)
    assert dict(before)["gpu"] == "NVIDIA H100"
    (model / "config.json").write_text('{"architectures": ["Other"]}')
    changed = fingerprint(model=str(model), engine="0.32.0", host=GpuHost((CARD,), "570.1"))
    assert [line.partition(":")[0] for line in differences(before, changed)] == ["model_config"]


def test_model_in_the_hugging_face_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub/models--org--m"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text("abc123")
    (cache / "snapshots/abc123").mkdir(parents=True)
    (cache / "snapshots/abc123/config.json").write_text("{}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert model_folder("org/m") == cache / "snapshots/abc123"
    assert dict(fingerprint(model="org/m", host=GpuHost()))["model_revision"] == "abc123"
    assert model_folder("org/other") is None


def test_reading_gpus_never_fails() -> None:
    host = read_gpus()
    assert bool(host.gpus) != bool(host.problem)
    fake = FakeGpus([GpuHost(), GpuHost((CARD,))])
    assert (fake.read().gpus, fake.read().gpus, fake.read().gpus) == ((), (CARD,), (CARD,))


def test_what_a_run_would_miss_hours_later_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: s\nmodel: llama-3.1-8b\nengine: {kind: simulated, env: {HF_TOKEN: '${NOT_SET_HERE}'}}\n"
        "quality: {tasks: [questions.jsonl]}\n"
    )
    with pytest.raises(typer.Exit):
        doctor(study, as_json=True)
    found = {one["check"]: one["text"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "NOT_SET_HERE is not set" in found["variables"]
    assert "questions.jsonl: cannot be read" in found["quality"]
