"""All kinds of engine. One more kind is one more line in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from autotune.engine.command import command_engine
from autotune.engine.endpoint import endpoint_engine
from autotune.engine.live import LiveFactory
from autotune.engine.process import ProcessEngine
from autotune.engine.protocol import Engine, EngineContext
from autotune.engine.readiness import limits_of
from autotune.engine.recipe import VllmRecipe, simulated_recipe, vllm_recipe
from autotune.engine.split import SplitEngine
from autotune.engine.standby import Standby
from autotune.engine.virtual import VirtualLauncher
from autotune.space.config import EngineConfig
from autotune.space.topology import split_slots
from autotune.spec.study import StudySpec

SIMULATOR_LIVE: Final = frozenset({"max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"})
"""What the simulator changes while it runs."""
VIRTUAL_POLL: Final = 0.5
"""Virtual seconds between two looks at a start that takes two minutes; each costs real time."""


def _context(spec: StudySpec) -> EngineContext:
    return EngineContext(
        spec.model,
        EngineConfig.of(dict(spec.engine.args), spec.engine.env),
        spec.engine.ready_timeout,
        spec.engine.hang_timeout,
    )


def _vllm(spec: StudySpec, live: LiveFactory | None, standby: Standby | None) -> Engine:
    names = live.names if live is not None else frozenset[str]()
    limits = limits_of(spec)
    return ProcessEngine(vllm_recipe(spec), _context(spec), limits, live, names, standby)


def _simulated(spec: StudySpec, live: LiveFactory | None, standby: Standby | None) -> Engine:
    names = SIMULATOR_LIVE if spec.engine.live else frozenset[str]()
    limits = limits_of(spec)
    if not spec.engine.virtual:
        return ProcessEngine(simulated_recipe(spec), _context(spec), limits, None, names)
    limits = replace(limits, ownership=False, poll=VIRTUAL_POLL)
    launcher = VirtualLauncher(spec.search.seed)
    return ProcessEngine(simulated_recipe(spec), _context(spec), limits, None, names, launcher=launcher)


ENGINES: Final[Mapping[str, Callable[[StudySpec, LiveFactory | None, Standby | None], Engine]]] = {
    "vllm": _vllm,
    "simulated": _simulated,
    "endpoint": lambda spec, live, standby: endpoint_engine(spec),
    "command": lambda spec, live, standby: command_engine(spec),
}


def _split(spec: StudySpec) -> Engine:
    """Several engines of a kind behind a router."""
    engine = ENGINES[spec.engine.kind](spec, None, None)
    assert isinstance(engine, ProcessEngine), "the specification allows no other kind"
    on_cpu = isinstance(engine.recipe, VllmRecipe) and engine.recipe.on_cpu
    slots = split_slots(spec, spec.hardware.most_gpus)
    return SplitEngine(engine, spec.topology, slots, spec.name, on_cpu)


def create_engine(
    spec: StudySpec, *, live: LiveFactory | None = None, standby: Standby | None = None, base: Path | None = None
) -> Engine:
    """The engine that a study asks for.

    Args:
        spec: the study.
        live: makes live limits for a real vLLM (its scheduler must be started with a class that reads them).
        standby: keeps an interpreter ready for the next start of a real vLLM.
        base: folder that relative model paths are resolved against; default: the working directory.

    Raises:
        SpecError: the study asks for something that cannot be.
        EnvironmentFault: the engine is not installed.
    """
    if base is not None and (base / spec.model / "config.json").is_file():
        spec = spec.model_copy(update={"model": str((base / spec.model).resolve())})
    if spec.topology.split:
        return _split(spec)
    changes, fast = spec.engine.live, spec.engine.fast_start
    return ENGINES[spec.engine.kind](spec, live if changes else None, standby if fast else None)
