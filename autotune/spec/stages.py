"""The stages of an engine's start, as a study names them."""

from __future__ import annotations

from typing import Literal, TypeAlias

StartStage: TypeAlias = Literal[
    "cli", "import", "inspect", "config", "engine_import", "init", "weights", "profiling", "compile", "kv_cache",
    "graphs", "warmup", "server", "serving",
]  # fmt: skip
"""In the order of a start; `autotune run` shows them."""
