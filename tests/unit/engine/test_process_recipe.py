"""Command lines and environments: the key is never on one, ours cannot be overruled, `${NAME}` is filled in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from autotune.engine.command_runner import COMMANDS_VARIABLE
from autotune.engine.gpumemory import gpu_watch
from autotune.engine.live import LiveStart
from autotune.engine.readiness import QUIET_SECONDS, limits_of
from autotune.engine.recipe import CommandRecipe, Identity, SimulatedRecipe, VllmRecipe, expand, vllm_recipe
from autotune.engine.stages import Stage
from autotune.errors import EnvironmentFault, SpecError
from autotune.host.gpus import FakeGpus, Gpu, GpuHost, GpuProcess
from autotune.space.config import EngineConfig
from autotune.space.topology import split_plan
from autotune.spec.stages import StartStage
from autotune.spec.study import CommandSpec, StudySpec

IDENTITY = Identity(18_100, "t-name", "the-secret-key", (2, 3))
GIB = 1 << 30


def test_vllm_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "of-somebody-else")
    monkeypatch.setenv("VLLM_PORT", "1")
    recipe = VllmRecipe("/venv/bin/python", "org/model", "abc", (("FOO", "bar"),))
    config = EngineConfig.of({"max_num_seqs": 8, "host": "0.0.0.0", "port": 80, "api_key": "x"}, {"VLLM_USE_X": "1"})
    command = recipe.command(config, IDENTITY, LiveStart(("--scheduler-cls", "a.B"), (("LIVE", "1"),)))
    words = list(command.argv)
    assert words[:5] == ["/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "org/model"]
    for flag, value in (
        ("--host", "127.0.0.1"),
        ("--port", "18100"),
        ("--served-model-name", "t-name"),
        ("--revision", "abc"),
        ("--max-num-seqs", "8"),
        ("--scheduler-cls", "a.B"),
    ):
        assert words.count(flag) == 1
        assert words[words.index(flag) + 1] == value
    assert "the-secret-key" not in " ".join(words)
    assert command.env["VLLM_API_KEY"] == "the-secret-key"
    assert command.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert (command.env["FOO"], command.env["LIVE"], command.env["VLLM_USE_X"]) == ("bar", "1", "1")
    assert (command.env["VLLM_NO_USAGE_STATS"], command.env["DO_NOT_TRACK"]) == ("1", "1")
    assert "HF_HUB_OFFLINE" not in command.env or "HF_HUB_OFFLINE" in os.environ
    assert "VLLM_PORT" not in command.env
    assert "the-secret-key" not in repr(command) + repr(IDENTITY)


def test_local_model_needs_no_network(tmp_path: Path) -> None:
    command = VllmRecipe("python", str(tmp_path)).command(EngineConfig(), IDENTITY, LiveStart())
    assert command.env["HF_HUB_OFFLINE"] == "1"


def test_fast_starts_share_the_kernel_cache_of_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME", "VLLM_WORKER_MULTIPROC_METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    one, two = Identity(18_100, "n", "k", (0,)), IDENTITY

    def env(recipe: VllmRecipe, identity: Identity = one) -> dict[str, str]:
        return dict(recipe.command(EngineConfig(), identity, LiveStart()).env)

    fast = VllmRecipe("python", "m", fast=True)
    assert env(fast)["TRITON_CACHE_DIR"] == env(fast, two)["TRITON_CACHE_DIR"] == str(tmp_path / ".triton" / "cache")
    assert env(fast)["VLLM_WORKER_MULTIPROC_METHOD"] == env(fast, two)["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    for plain in (VllmRecipe("python", "m"), VllmRecipe("python", "m", fast=True, on_cpu=True)):
        assert not {"TRITON_CACHE_DIR", "VLLM_WORKER_MULTIPROC_METHOD"} & env(plain).keys()
    own = VllmRecipe("python", "m", env=(("TRITON_HOME", "/own"),), fast=True)
    assert env(own)["TRITON_CACHE_DIR"] == "/own/.triton/cache"
    monkeypatch.setenv("TRITON_HOME", "/elsewhere")
    assert env(fast)["TRITON_CACHE_DIR"] == "/elsewhere/.triton/cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    assert env(fast)["TRITON_CACHE_DIR"] == "/mine"


def test_simulator_takes_the_same_arguments() -> None:
    recipe = SimulatedRecipe("m", (("AUTOTUNE_SIM_CARD", "h200"),), (("AUTOTUNE_SIM_FAULT", "die_after"),))
    command = recipe.command(EngineConfig.of({"max_num_seqs": 8}), IDENTITY, LiveStart())
    assert command.argv[:5] == (sys.executable, "-m", "autotune.simulator", "serve", "m")
    assert command.env["AUTOTUNE_SIM_CARD"] == "h200"
    assert command.env["AUTOTUNE_SIM_GPUS"] == "2"
    assert command.env["AUTOTUNE_SIM_FAULT"] == "die_after"


def test_templates_are_filled_in() -> None:
    start = ["docker", "run", "-p", "{port}:8000", "vllm", "--served-model-name={name}", "{model}", "{args}"]
    recipe = CommandRecipe("org/m", CommandSpec(start=start, stop=["docker", "stop", "{name}"]))
    command = recipe.command(EngineConfig.of({"max_num_seqs": 8}), IDENTITY, LiveStart())
    words = json.loads(command.env[COMMANDS_VARIABLE])
    assert words["start"] == [
        *["docker", "run", "-p", "18100:8000", "vllm", "--served-model-name=t-name", "org/m", "--max-num-seqs", "8"]
    ]
    assert words["stop"] == ["docker", "stop", "t-name"]
    assert "the-secret-key" not in " ".join(command.argv)


def test_variables_are_filled_in() -> None:
    assert expand((("A", "x-${B}-${C}"),), {"B": "1", "C": "2"}) == {"A": "x-1-2"}
    with pytest.raises(SpecError, match="B is not set") as caught:
        expand((("A", "${B}"),), {})
    assert "export B=" in str(caught.value)


def test_interpreters_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    spec = {"name": "s", "model": "m", "engine": {"python": "cpu"}}
    with pytest.raises(EnvironmentFault, match="not set up"):
        vllm_recipe(StudySpec.model_validate(spec))
    spec["engine"] = {"python": "/no/python"}
    with pytest.raises(SpecError, match="no interpreter"):
        vllm_recipe(StudySpec.model_validate(spec))


def card(used: int, *pids: int) -> GpuHost:
    return GpuHost((Gpu(0, "GPU-0", "H100", 80 * GIB, used, tuple(GpuProcess(pid, used) for pid in pids)),))


async def test_waits_until_the_memory_is_back() -> None:
    busy, idle = card(70 * GIB, 999_999_999), card(GIB)
    reader = FakeGpus([idle, busy, busy, idle])
    watch = gpu_watch([0], reader)
    assert watch.idle_free_gib == 79
    assert await watch.wait_free([999_999_999], deadline=5) == ()
    assert reader.reads == 4


async def test_says_what_stays() -> None:
    watch = gpu_watch([0], FakeGpus([card(GIB), card(70 * GIB)]))
    assert await watch.wait_free([], deadline=0) == ("GPU 0 has 69.0 GiB more in use than before the start",)


async def test_does_not_wait_for_somebody_else() -> None:
    other = os.getpid()  # lives, and is no process of the engine
    watch = gpu_watch([0], FakeGpus([card(GIB), card(70 * GIB, other)]))
    assert await watch.wait_free([], deadline=0) == ()


async def test_a_host_without_gpus_has_nothing_to_wait_for() -> None:
    watch = gpu_watch([], FakeGpus([]))
    assert await watch.wait_free([1], deadline=0) == ()
    assert watch.idle_free_gib is None


def test_a_study_sets_the_longest_silence_of_each_stage() -> None:
    """Names in the study file are the stages that a start goes through, and each has a default."""
    assert set(get_args(StartStage)) == {stage.value for stage in QUIET_SECONDS}
    spec = StudySpec.model_validate({"name": "s", "model": "m", "engine": {"phase_timeouts": {"weights": "30m"}}})
    limits = limits_of(spec)
    assert limits.quiet[Stage.WEIGHTS] == 1800
    assert {stage: limits.quiet[stage] for stage in QUIET_SECONDS if stage is not Stage.WEIGHTS} == {
        stage: seconds for stage, seconds in QUIET_SECONDS.items() if stage is not Stage.WEIGHTS
    }
    with pytest.raises(ValidationError, match="weight"):
        StudySpec.model_validate({"name": "s", "model": "m", "engine": {"phase_timeouts": {"wieghts": 5}}})


def test_the_studys_own_imports_stay_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of the user's must load in the search as it does in the confirmation, which starts without ours."""
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    live = LiveStart(imports="/ours")

    def path(env: tuple[tuple[str, str], ...], start: LiveStart) -> str | None:
        return VllmRecipe("python", "m", env=env).command(EngineConfig(), IDENTITY, start).env.get("PYTHONPATH")

    assert path((("PYTHONPATH", "/theirs"),), live) == "/ours:/theirs"
    assert path((), live) == "/ours:/inherited"
    assert path((("PYTHONPATH", "/theirs"),), LiveStart()) == "/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert path((), live) == "/ours"


@pytest.mark.parametrize("where", ["shell", "engine.env", "baseline.env"])
def test_variables_of_nccl_reach_the_engine_as_they_are(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a machine's notes ask for: multicast off, an interface, a ring."""
    wanted = {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "eth0,lo", "NCCL_ALGO": "Ring"}
    for name, value in wanted.items() if where == "shell" else ():
        monkeypatch.setenv(name, value)
    study = tuple(wanted.items()) if where == "engine.env" else ()
    config = EngineConfig.of({"tensor_parallel_size": 2}, wanted if where == "baseline.env" else {})
    for member in (config, *(one.config for one in split_plan(config, 4).members)):
        env = VllmRecipe("/venv/bin/python", "org/model", env=study).command(member, IDENTITY, LiveStart()).env
        assert {name: env[name] for name in wanted} == wanted
