"""The interpreter that waits, with a package in vLLM's place: what it becomes, and what it must never be."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.recipe import Command
from autotune.engine.standby import Standby

TORCH = """
class cuda:
    is_initialized = _is_in_bad_fork = staticmethod(lambda: False)
"""
ENVS = """
import os
environment_variables = {"VLLM_API_KEY": lambda: os.environ.get("VLLM_API_KEY")}
def __getattr__(name):
    return environment_variables[name]()
"""
MAIN = """
import json, os, subprocess, sys, time
from vllm import envs
imported, used = time.monotonic(), os.environ.get("VLLM_USE_SOMETHING")

def main():
    said = {"waited": time.monotonic() - imported, "used": used, "argv": sys.argv, "key": envs.VLLM_API_KEY}
    said["environment"] = os.environ.get("VLLM_API_KEY")
    ask = "from vllm import envs; print(envs.VLLM_API_KEY)"
    said["child"] = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, str(envs.VLLM_API_KEY).encode())
        os._exit(0)
    os.wait()
    said["forked"] = os.read(read, 99).decode()
    with open("said.partial", "w") as file:
        json.dump(said, file)
    os.rename("said.partial", "said.json")
    time.sleep(60)
"""
PACKAGE = {
    "torch/__init__.py": TORCH,
    "vllm/__init__.py": "",
    "vllm/envs.py": ENVS,
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/main.py": MAIN,
}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    site = tmp_path / "site"
    for name, text in PACKAGE.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    env = {"PYTHONPATH": str(site), "VLLM_API_KEY": "a key", "PATH": "/usr/bin:/bin"}
    return Command((sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "model", "--port", "1"), env)


@pytest.fixture
async def standby() -> AsyncIterator[Standby]:
    kept = Standby(1.0)
    yield kept
    await kept.close()


async def take(standby: Standby, command: Command, folder: Path) -> dict[str, object] | None:
    """What the process says that the interpreter became, which is ended then; None for no interpreter."""
    folder.mkdir()
    job = await standby.take(command, folder=folder, log=folder / "engine.log")
    if job is None:
        return None
    try:
        async with asyncio.timeout(20):
            while not (folder / "said.json").exists():  # noqa: ASYNC110 (another process writes it)
                await asyncio.sleep(0.02)
    finally:
        await job.stop(0.0)
    said: dict[str, object] = json.loads((folder / "said.json").read_text())
    return said


async def test_a_start_with_nobody_waiting_makes_one(standby: Standby, command: Command, tmp_path: Path) -> None:
    said = await take(standby, command, tmp_path / "trial")
    assert said is not None
    assert said["argv"] == ["vllm", "serve", "model", "--port", "1"]
    assert standby.used


async def test_vllm_on_the_path_of_the_environment_is_imported_before_the_order(
    standby: Standby, command: Command, tmp_path: Path
) -> None:
    await standby.prepare(command, tmp_path)
    await standby.wait_ready()
    await asyncio.sleep(0.1)
    said = await take(standby, command, tmp_path / "trial")
    assert said is not None
    assert isinstance(said["waited"], float)
    assert said["waited"] > 0.1


async def test_only_the_server_itself_knows_the_key(standby: Standby, command: Command, tmp_path: Path) -> None:
    said = await take(standby, command, tmp_path / "trial")
    assert said is not None
    assert said["key"] == "a key"
    assert (said["environment"], said["forked"], said["child"]) == (None, "None", "None")


@pytest.mark.parametrize("words", [("--data-parallel-size", "2"), ("--api-server-count=2",)])
async def test_several_servers_have_the_key_in_their_environment(
    words: tuple[str, ...], standby: Standby, command: Command, tmp_path: Path
) -> None:
    said = await take(standby, replace(command, argv=(*command.argv, *words)), tmp_path / "trial")
    assert said is not None
    assert said["environment"] == said["forked"] == said["child"] == "a key"


async def test_one_that_imported_with_other_variables_is_not_used(
    standby: Standby, command: Command, tmp_path: Path
) -> None:
    await standby.prepare(replace(command, env={**command.env, "VLLM_USE_SOMETHING": "1"}), tmp_path)
    said = await take(standby, command, tmp_path / "trial")
    assert said is not None
    assert said["used"] is None
    assert standby.used


async def test_one_that_may_not_be_forked_ends_itself(standby: Standby, command: Command, tmp_path: Path) -> None:
    (tmp_path / "site/torch/__init__.py").write_text(TORCH.replace("False", "True"))
    assert await take(standby, command, tmp_path / "trial") is None
    assert not standby.used


async def test_given_up_means_never_again(standby: Standby, command: Command, tmp_path: Path) -> None:
    standby.give_up()
    assert await take(standby, command, tmp_path / "trial") is None
    assert not standby.usable
