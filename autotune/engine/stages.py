"""The stages of a start as the log shows them, and where a line stands among them."""

from __future__ import annotations

import re
from enum import StrEnum

from autotune.engine.logline import LogLine


class Stage(StrEnum):
    """Where an engine is between its first line and its last, in the order of a start."""

    CLI = "cli"
    IMPORT = "import"
    INSPECT = "inspect"
    CONFIG = "config"
    ENGINE_IMPORT = "engine_import"
    INIT = "init"
    WEIGHTS = "weights"
    PROFILING = "profiling"
    COMPILE = "compile"
    KV_CACHE = "kv_cache"
    GRAPHS = "graphs"
    WARMUP = "warmup"
    SERVER = "server"
    SERVING = "serving"
    SHUTDOWN = "shutdown"


# The first line that belongs to a stage. vLLM 0.26 to 0.33, GPU and CPU; older wordings where they are known.
_MARKERS: tuple[tuple[Stage, re.Pattern[str]], ...] = tuple(
    (stage, re.compile(pattern))
    for stage, pattern in (
        (Stage.INSPECT, r"^non-default args: "),
        (Stage.CONFIG, r"^Resolved architecture: "),
        (Stage.INIT, r"^Initializing an? (?:V1 )?LLM engine "),
        (
            Stage.WEIGHTS,
            r"^(?:Loading model from scratch|Starting to load model |Loading safetensors checkpoint shards:|"
            r"Initializing model took )",
        ),
        (
            Stage.PROFILING,
            r"^(?:(?:Model loading|Loading model weights|Loading weights) took |Profiling CUDA graph memory|"
            r"Initial profiling/warmup run took )",
        ),
        (
            Stage.COMPILE,
            r"^(?:Using cache directory: .* torch\.compile|Dynamo bytecode transform time|Compiling a graph for|"
            r"Warming up model for the compilation|Start compiling function|Directly load )",
        ),
        (
            Stage.KV_CACHE,
            r"^(?:Available KV cache memory: |(?:GPU|CPU|\w+) KV cache size: |# (?:GPU|CUDA) blocks: |"
            r"Explicitly set \(|Memory profiling takes )",
        ),
        (Stage.GRAPHS, r"^(?:Capturing (?:CUDA graphs?|cudagraphs?|the model))"),
        (Stage.WARMUP, r"^(?:Graph capturing finished in |Warming up model\b|Kernel JIT monitor activated)"),
        (Stage.SERVER, r"^(?:init engine \(profile, |Supported (?:tasks|_tasks): |Starting vLLM (?:API )?server)"),
        (Stage.SERVING, r"^(?:Application startup complete|Uvicorn running on )"),
        (
            Stage.SHUTDOWN,
            r"^(?:\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received signal)|"
            r"(?:Received (?:SIGTERM|SIGINT|signal)|Shutting down$))",
        ),
    )
)
_ORDER = {stage: place for place, stage in enumerate(Stage)}
# These may follow each other either way: a profile run compiles, and profiling goes on after it.
_EITHER_WAY = frozenset({Stage.PROFILING, Stage.COMPILE})


class StageTracker:
    """Follows a log line by line; memory does not grow."""

    def __init__(self) -> None:
        self.stage = Stage.IMPORT

    @property
    def serving(self) -> bool:
        """The server has come up at some time."""
        return _ORDER[self.stage] >= _ORDER[Stage.SERVING]

    def feed(self, line: LogLine) -> Stage | None:
        """The stage that begins with this line, or None where none does. Stages never go back."""
        if line.level in ("ERROR", "CRITICAL", "WARNING") and not line.text.startswith("[shutdown]"):
            return None
        stage = stage_of(line.text)
        if stage is None or stage is self.stage:
            return None
        forward = _ORDER[stage] > _ORDER[self.stage] or {stage, self.stage} == _EITHER_WAY
        early_graphs = stage is Stage.GRAPHS and _ORDER[self.stage] < _ORDER[Stage.KV_CACHE]
        if not forward or (early_graphs and self.stage in _EITHER_WAY):
            # Since 0.21 graphs are captured once while profiling, to estimate their memory.
            return None
        self.stage = stage
        return stage


def stage_of(text: str) -> Stage | None:
    """The stage whose first line reads like ``text``."""
    for stage, pattern in _MARKERS:
        if pattern.match(text):
            return stage
    return None


def is_before(first: Stage, second: Stage) -> bool:
    """``first`` comes earlier in a start than ``second``."""
    return _ORDER[first] < _ORDER[second]
