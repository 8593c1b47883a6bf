"""What the engine says it runs with, against what was asked."""

from __future__ import annotations

from autotune.engine.client import Json
from autotune.engine.protocol import Resolved
from autotune.engine.startlog import StartLog
from autotune.space.config import EngineConfig


def resolve(config: EngineConfig, log: StartLog, info: Json, version: str) -> Resolved:
    """Compare; see `Resolved`."""
    return Resolved(version=version)
