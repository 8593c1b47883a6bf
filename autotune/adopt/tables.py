"""Which vLLM a launch configuration is held against: the one that is at hand, else the shipped table of 0.32.0."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.cpu_setup import INTERPRETER_NAME
from autotune.engine.probe import probe
from autotune.errors import EnvironmentFault
from autotune.host.facts import read_installation
from autotune.host.state import state_dir
from autotune.space.arguments import ArgumentTable, bundled_table
from autotune.spec.study import EngineSpec

SHIPPED = "autotune's own table"


@dataclass(frozen=True, slots=True)
class AskedTable:
    """Arguments of a vLLM, and where they come from, for people.

    Attributes:
        table: what its parser takes.
        origin: where that was read.
        shipped: no vLLM was asked; a file that names a release is held against what is known of that one.
    """

    table: ArgumentTable
    origin: str
    shipped: bool = False

    @property
    def asked(self) -> ArgumentTable | None:
        """For `adopt_file`: None lets the file choose among the shipped ones."""
        return None if self.shipped else self.table


def shipped(why: str = "") -> AskedTable:
    """The table of 0.32.0 that comes with autotune."""
    return AskedTable(bundled_table(), f"{SHIPPED}; {why}" if why else SHIPPED, shipped=True)


def table_of(python: str | None) -> AskedTable:
    """What the vLLM of an interpreter takes.

    Args:
        python: path or name of the interpreter. None: the one that runs autotune, where it has a vLLM.

    Raises:
        EnvironmentFault: `python` is named and there is no such interpreter, or no vLLM in it.
    """
    if python == INTERPRETER_NAME:  # the CPU engine is of the shipped version
        return shipped()
    if python is None:
        return _at_hand(sys.executable)
    version = _version(python)
    return AskedTable(_asked(python, version), f"the parser of {python}" if version else SHIPPED)


def table_of_engine(engine: EngineSpec) -> AskedTable:
    """What the vLLM of a study takes, as far as it is on this machine."""
    if engine.kind != "vllm" or engine.python == INTERPRETER_NAME:
        return shipped()
    return _at_hand(engine.python or sys.executable)


def _at_hand(python: str) -> AskedTable:
    version = _version(python)
    if not version:
        return shipped()
    try:
        return AskedTable(_asked(python, version), f"the parser of {python}")
    except EnvironmentFault as fault:
        return shipped(str(fault))


def _asked(python: str, version: str) -> ArgumentTable:
    """Starting a vLLM's imports takes half a minute: not for the version whose table is here."""
    return bundled_table() if version == bundled_table().version else probe(python, state_dir() / "arguments")


def _version(python: str) -> str:
    return read_installation(Path(python)).vllm.partition("+")[0]
