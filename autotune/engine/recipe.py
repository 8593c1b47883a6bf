"""What to run: the command line and the environment of each kind of engine that is a process of ours."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autotune.engine import command_runner, cpu_setup
from autotune.engine.command_runner import COMMANDS_VARIABLE
from autotune.engine.listeners import LOOPBACK
from autotune.engine.live import LiveStart
from autotune.errors import EnvironmentFault, SpecError
from autotune.host.facts import read_installation
from autotune.space.argv import to_argv
from autotune.space.config import EngineConfig
from autotune.space.renames import translate
from autotune.spec.study import CommandSpec, StudySpec

OURS = frozenset({"host", "port", "api_key", "served_model_name", "model", "uds", "ssl_keyfile", "ssl_certfile"})
"""Arguments that decide who answers where. The engine room sets them; what a configuration says is left out."""
RUNNER = str(Path(command_runner.__file__))
_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class Identity:
    """How one start is recognised: port and served name, fresh for each, and the run's key."""

    port: int
    served_model: str
    api_key: str = field(repr=False)
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its environment, which holds the key and is therefore never printed."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cpus: tuple[int, ...] = ()
    """Processors that it is bound to; empty for all."""


class Recipe(Protocol):
    """Turns a configuration into a command."""

    @property
    def time_scale(self) -> float:
        """Multiply measured seconds by this."""

    @property
    def live_route(self) -> str:
        """Route that takes live settings, empty for none."""

    def command(self, config: EngineConfig, identity: Identity, live: LiveStart) -> Command: ...


@dataclass(frozen=True)
class VllmRecipe:
    """A real vLLM in any interpreter.

    Attributes:
        python: the interpreter.
        model: Hugging Face id or folder.
        revision: of the model.
        env: the study's variables, ``${NAME}`` not yet filled in.
        on_cpu: the CPU build.
        fast: fork the engine's processes instead of importing everything again, and share Triton's cache.
        version: of that vLLM, so that renamed arguments are given by the name that it knows.
    """

    python: str
    model: str
    revision: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    on_cpu: bool = False
    fast: bool = False
    version: str = ""
    time_scale: float = 1.0
    live_route: str = ""

    def command(self, config: EngineConfig, identity: Identity, live: LiveStart) -> Command:
        """The command line has nothing secret: the key goes by VLLM_API_KEY."""
        argv = (
            *(self.python, "-m", "vllm.entrypoints.cli.main", "serve", self.model),
            *_where(identity),
            *(("--revision", self.revision) if self.revision else ()),
            *to_argv(translate(without_ours(config), self.version)[0]),
            *live.args,
        )
        env = {**inherited(), **_QUIET, "VLLM_SERVER_DEV_MODE": "1"}
        if Path(self.model).exists():
            env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if identity.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, identity.gpus))
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML numbers cards that way, CUDA by speed
        if self.fast and not self.on_cpu and identity.gpus:
            env["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if self.on_cpu:
            # The ahead-of-time cache of this build never loads again, so it costs a compile at each start.
            env["VLLM_USE_AOT_COMPILE"] = "0"
            if config.get("enforce_eager"):
                # A helper of the sampler is compiled all the same, at the first request that wants log-probabilities:
                # 25 s instead of 0.5 s.
                env["TORCHDYNAMO_DISABLE"] = "1"
        env |= {**expand(self.env), **expand(config.env), **dict(live.env), "VLLM_API_KEY": identity.api_key}
        if self.fast and not self.on_cpu:
            # vLLM moves Inductor's cache, and Triton's with it, to a folder of each compilation. Its own two dozen
            # Triton kernels, the same for all, would be compiled again for every new one (15 s on an H200's host).
            env.setdefault("TRITON_CACHE_DIR", str(_triton_cache(env)))
        if live.imports:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (live.imports, env.get("PYTHONPATH"))))
        return Command(argv, env)


def _triton_cache(env: Mapping[str, str]) -> Path:
    """Where Triton itself would keep its cache: `knobs.py`, `cache_knobs.dir`."""
    return Path(env.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


@dataclass(frozen=True)
class SimulatedRecipe:
    """Our simulator, which takes vLLM's arguments and keeps its own settings in AUTOTUNE_SIM_* variables."""

    model: str
    settings: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    time_scale: float = 1.0
    live_route: str = "/autotune/reconfigure"

    def command(self, config: EngineConfig, identity: Identity, live: LiveStart) -> Command:
        """As for vLLM."""
        argv = (
            *(sys.executable, "-m", "autotune.simulator", "serve", self.model),
            *_where(identity),
            *to_argv(without_ours(config)),
        )
        env = {**inherited(), **dict(self.settings)}
        if identity.gpus:
            env["AUTOTUNE_SIM_GPUS"] = str(len(identity.gpus))
        env |= {**expand(self.env), **expand(config.env), "VLLM_API_KEY": identity.api_key}
        return Command(argv, env)


@dataclass(frozen=True)
class CommandRecipe:
    """Templates of the user's. `{args}` is replaced by all of vLLM's arguments, the other names by one word each."""

    model: str
    template: CommandSpec
    env: tuple[tuple[str, str], ...] = ()
    time_scale: float = 1.0
    live_route: str = ""

    def command(self, config: EngineConfig, identity: Identity, live: LiveStart) -> Command:
        """The key is also in VLLM_API_KEY, so that `docker run -e VLLM_API_KEY` keeps it off the command line."""
        env = {**inherited(), **_QUIET, **expand(self.env), **expand(config.env), "VLLM_API_KEY": identity.api_key}
        if identity.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, identity.gpus))
        words = {
            "start": self.fill(self.template.start, config, identity),
            "logs": self.fill(self.template.logs or (), config, identity),
            "stop": self.fill(self.template.stop or (), config, identity),
        }
        # Not as an argument: a template may contain the key.
        return Command((sys.executable, "-I", "-S", RUNNER), {**env, COMMANDS_VARIABLE: json.dumps(words)})

    def fill(self, words: Sequence[str], config: EngineConfig, identity: Identity) -> tuple[str, ...]:
        """Expand a template."""
        values = {
            "port": str(identity.port),
            "name": identity.served_model,
            "model": self.model,
            "api_key": identity.api_key,
        }
        filled: list[str] = []
        for word in words:
            if word == "{args}":
                filled += to_argv(without_ours(config))
                continue
            for name, value in values.items():
                word = word.replace("{" + name + "}", value)
            filled.append(word)
        return tuple(filled)


def vllm_recipe(spec: StudySpec) -> VllmRecipe:
    """The recipe that a study asks for.

    Raises:
        SpecError: the interpreter does not exist.
        EnvironmentFault: the CPU engine has not been set up.
    """
    python, model, on_cpu = spec.engine.python or sys.executable, spec.model, False
    if python == cpu_setup.INTERPRETER_NAME:
        found = cpu_setup.locate()
        if found is None:
            raise EnvironmentFault(
                "The CPU engine is not set up on this machine.",
                hint="Run `python -m autotune.engine.cpu_setup` (about two minutes), or use `kind: simulated`.",
            )
        python, on_cpu = str(found.python), True
        if model == cpu_setup.MODEL_NAME:
            model = str(found.model)
    elif not os.access(python, os.X_OK):
        raise SpecError(
            f"{python} is no interpreter that can be run.",
            key="engine.python",
            hint="Give the absolute path of a Python that has vLLM installed, or `cpu`.",
        )
    model = str(Path(model).expanduser()) if model.startswith("~") else model
    env = tuple(sorted(spec.engine.env.items()))
    version = read_installation(Path(python)).vllm
    return VllmRecipe(python, model, spec.revision, env, on_cpu, fast=spec.engine.fast_start, version=version)


def simulated_recipe(spec: StudySpec) -> SimulatedRecipe:
    """The simulator with the study's card and speed; variables of the study win, so tests can set faults."""
    simulate = spec.engine.simulate
    settings: dict[str, str] = {}
    speed = 1.0
    if simulate is not None:
        speed = simulate.pace
        settings = {
            "AUTOTUNE_SIM_CARD": simulate.card,
            "AUTOTUNE_SIM_SPEED": f"{speed:g}",
            "AUTOTUNE_SIM_NOISE": f"{simulate.noise:g}",
            "AUTOTUNE_SIM_STARTUP": f"{simulate.startup:g}",
        }
        if simulate.fault:
            settings["AUTOTUNE_SIM_FAULT"] = simulate.fault
        if spec.hardware.most_gpus:
            settings["AUTOTUNE_SIM_GPUS"] = str(spec.hardware.most_gpus)
    return SimulatedRecipe(
        spec.model, tuple(sorted(settings.items())), tuple(sorted(spec.engine.env.items())), time_scale=speed
    )


def without_ours(config: EngineConfig) -> EngineConfig:
    """A configuration without the arguments that belong to the engine room."""
    return EngineConfig(tuple(item for item in config.args if item[0] not in OURS), config.env)


def inherited() -> dict[str, str]:
    """Our own environment without what would change who answers where, and without our database's password."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("VLLM_API_KEY", "VLLM_PORT", "VLLM_HOST_IP", "PYTHONHOME", "PGPASSWORD")
    }


def expand(pairs: tuple[tuple[str, str], ...], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Fill in ``${NAME}`` from our environment.

    Raises:
        SpecError: a name is not set.
    """
    source = os.environ if environ is None else environ

    def fill(match: re.Match[str]) -> str:
        value = source.get(match[1])
        if value is None:
            raise SpecError(
                f"the variable {match[1]} is not set in our own environment",
                key="engine.env",
                hint=f"Set it before the start (export {match[1]}=...), or take ${{{match[1]}}} out of the study.",
            )
        return value

    return {name: _NAME.sub(fill, value) for name, value in pairs}


def _where(identity: Identity) -> tuple[str, ...]:
    return ("--host", LOOPBACK, "--port", str(identity.port), "--served-model-name", identity.served_model)
