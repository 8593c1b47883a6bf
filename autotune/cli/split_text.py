"""The commands of a trial that is several engines: one for each of them, and the router's."""

from __future__ import annotations

import json
import shlex

from autotune.assembly import shell_command
from autotune.engine.cpu_setup import model_path
from autotune.engine.router import SETTINGS_VARIABLE
from autotune.engine.split import SIDE_CHANNEL
from autotune.space.config import EngineConfig
from autotune.space.topology import Member, split_plan, split_slots
from autotune.spec.study import StudySpec

FIRST_PORT = 8001
"""Of the engines, where somebody starts them by hand; the router takes the one before it."""
FIRST_SIDE_PORT = 5600
"""Of the channels over which engines agree on a cache that is handed on."""


def split_commands(spec: StudySpec, config: EngineConfig, gpus: int) -> tuple[tuple[str, str], ...]:
    """Name and shell command of every engine of a trial, and of the router; empty where a trial is one engine.

    Args:
        spec: the study.
        config: of the trial.
        gpus: GPUs of the trial, 0 on the CPU engine.
    """
    if not spec.topology.split:
        return ()
    on_cpu = spec.engine.python == "cpu"
    plan = split_plan(config, split_slots(spec, gpus or None), transfer=spec.topology.transfer, on_cpu=on_cpu)
    model = model_path(spec.model)
    commands, places, free = [], [], 0
    for port, member in enumerate(plan.members, start=FIRST_PORT):
        visible = ",".join(map(str, range(free, free + member.gpus)))
        free += member.gpus
        cards = "" if on_cpu else f"CUDA_VISIBLE_DEVICES={visible} "
        command = shell_command(model, _with_side_channel(member, port - FIRST_PORT, spec.topology.transfer))
        commands.append((member.name, f"{cards}{command} --served-model-name {shlex.quote(model)} --port {port}"))
        places.append({"name": member.name, "role": member.role, "url": f"http://127.0.0.1:{port}"})
    settings = {
        "places": places,
        "threshold": plan.threshold,
        "transfer": spec.topology.transfer == "nixl",
        "characters_per_token": spec.topology.characters_per_token,
    }
    router = f"{SETTINGS_VARIABLE}={shlex.quote(json.dumps(settings))} python -m autotune.engine.router"
    return (*commands, ("router", f"{router} --port {FIRST_PORT - 1}"))


def _with_side_channel(member: Member, index: int, transfer: str) -> EngineConfig:
    """Engines that hand caches on need a side channel each; on one host they would all take vLLM's default port."""
    if transfer != "nixl" or member.role == "replica":
        return member.config
    return member.config.merged({}, dict(zip(SIDE_CHANNEL, ("127.0.0.1", str(FIRST_SIDE_PORT + index)), strict=True)))
