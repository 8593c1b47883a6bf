"""The start of a server as vLLM logs it: configuration, engine process, memory, compilation, graphs, warm-up.

Durations are those of vLLM 0.26.0 on an H200 host (cold 145 s, of which compilation 37 s), scaled by
AUTOTUNE_SIM_STARTUP. A failure of the memory plan or the layout appears in its own phase, after that phase's time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import VERSION
from .arguments import Flags
from .config import EngineSettings, resolve
from .described import config_line
from .failures import ConfigRefusal, EngineFailure
from .faults import SimulationEnvironment
from .logs import ProcessLog
from .memory import GIB, MemoryPlan, plan
from .tables import names

_API_IMPORT_S = 20.0
_INSPECT_S = 7.0
_ENGINE_IMPORT_S = 27.0
_ENGINE_FORK_S = 2.0
_INIT_S = 4.0
_LOAD_GIB_PER_S = 8.0
_COMPILE_COLD_S = 37.0
_COMPILE_WARM_S = 7.0
_PROFILE_S = 3.0
_GRAPH_S = 0.075
_WARMUP_S = 15.0
_PHASES = ("init", "load", "compile", "profile", "kv_init", "capture", "warmup")


class StartFailed(Exception):
    """The start has failed and said so on the log; the process ends with exit code 1."""


@dataclass
class Startup:
    """One start. ``run`` returns the settings and the memory plan, or raises after having logged the reason."""

    flags: Flags
    environment: SimulationEnvironment
    environ: Mapping[str, str]
    api: ProcessLog
    engine: ProcessLog
    seconds: float = 0.0
    compile_s: float = 0.0
    before_init_s: float = 0.0

    async def run(self) -> tuple[EngineSettings, MemoryPlan]:
        """Go through all phases.

        :raises StartFailed: the log says why.
        """
        self._banner()
        await self._pass(_API_IMPORT_S)
        deferred: EngineFailure | None = None
        try:
            settings = resolve(
                self.flags,
                self.environment.card,
                self.environment.gpus,
                allow_longer=self.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1",
            )
        except ConfigRefusal as refusal:
            self._refused(refusal)
            raise StartFailed from refusal
        except EngineFailure as failure:
            deferred = failure
        if deferred is not None:
            await self._engine_phases(None, None, deferred)
            raise StartFailed
        self._resolved(settings)
        await self._pass(_INSPECT_S)
        memory: MemoryPlan | None = None
        try:
            memory = plan(settings)
        except EngineFailure as failure:
            deferred, memory = failure, failure.memory
        await self._engine_phases(settings, memory, deferred)
        if memory is None:
            raise StartFailed
        return settings, memory

    async def _pass(self, seconds: float) -> None:
        self.seconds += seconds
        scale = self.environment.startup / self.environment.speed
        if seconds * scale > 0:
            await asyncio.sleep(seconds * scale)

    async def _engine_phases(
        self, settings: EngineSettings | None, memory: MemoryPlan | None, failure: EngineFailure | None
    ) -> None:
        fork = self.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork"
        await self._pass(_ENGINE_FORK_S if fork else _ENGINE_IMPORT_S)
        model = str(self.flags["model"])
        served = self.flags.get("served_model_name")
        name = str(served[0]) if isinstance(served, list) else model
        config = config_line(settings, model, name) if settings is not None else f"model={model!r}, simulated=True"
        self.engine.info("core.py:116", f"Initializing a V1 LLM engine (v{VERSION}) with config: {config}")
        for phase in _PHASES:
            self._announce(phase, settings, memory)
            await self._faulty(phase)
            if failure is not None and failure.phase == phase:
                self._failed(failure)
                raise StartFailed from failure
            if settings is not None:
                await getattr(self, f"_{phase}")(settings, memory)

    def _announce(self, phase: str, settings: EngineSettings | None, memory: MemoryPlan | None) -> None:
        """What vLLM says before a phase, so that a failure in it can be told from one before it."""
        if phase == "load":
            self.engine.info("model_runner.py:284", "Loading model from scratch...")
        elif phase == "kv_init" and memory is not None:
            self.engine.info("gpu_worker.py:560", f"Available KV cache memory: {memory.kv_gib:.2f} GiB")
        elif phase == "capture" and settings is not None and settings.graph_sizes:
            self.engine.raw(f"Capturing CUDA graphs (PIECEWISE):   0%|          | 0/{len(settings.graph_sizes)}")

    async def _faulty(self, phase: str) -> None:
        faults = self.environment.faults
        if faults.get("hang_at") == phase:
            self.engine.error("core.py:1510", f"simulated: hangs in phase {phase}")
            await asyncio.Event().wait()
        if faults.get("exit_at") == phase:
            self._failed(EngineFailure(phase, f"RuntimeError: simulated failure in phase {phase}"))
            raise StartFailed

    async def _init(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        world = settings.tensor_parallel * settings.pipeline_parallel
        self.engine.info(
            "parallel_state.py:1615",
            f"world_size={world} rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:0 backend=nccl",
        )
        await self._pass(_INIT_S)

    async def _load(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        self.engine.info("cuda.py:482", "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].")
        if memory is None:
            await self._pass(1.0)
            return
        seconds = 0.2 + memory.weights_gib / _LOAD_GIB_PER_S
        await self._pass(seconds)
        self.engine.info(
            "model_runner.py:305", f"Model loading took {memory.weights_gib:.2f} GiB and {seconds:.6f} seconds"
        )

    async def _compile(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        self.before_init_s = self.seconds
        if not settings.compiled:
            return
        seconds = _COMPILE_WARM_S if self._cached_compilation(settings) else _COMPILE_COLD_S
        self.compile_s = seconds
        await self._pass(seconds)
        self.engine.info("monitor.py:53", f"torch.compile took {seconds:.2f} s in total")

    async def _profile(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        await self._pass(_PROFILE_S)
        self.engine.info("monitor.py:81", "Initial profiling/warmup run took 0.52 s")

    async def _kv_init(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        if memory is None:
            return
        self.engine.info("kv_cache_utils.py:2177", f"GPU KV cache size: {memory.kv_tokens:,} tokens")
        self.engine.info(
            "kv_cache_utils.py:2178",
            f"Maximum concurrency for {settings.max_model_len:,} tokens per request: "
            f"{memory.kv_tokens / settings.max_model_len:.2f}x",
        )

    async def _capture(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        if not settings.graph_sizes or memory is None:
            return
        kinds = 2 if settings.graph_mode == "FULL_AND_PIECEWISE" else 1
        count = len(settings.graph_sizes)
        seconds = kinds * count * _GRAPH_S
        await self._pass(seconds)
        for kind in ("PIECEWISE", "FULL")[:kinds]:
            self.engine.raw(
                f"Capturing CUDA graphs ({kind}): 100%|██████████| {count}/{count} [00:04<00:00, 13.33it/s]"
            )
        self.engine.info(
            "model_runner.py:747", f"Graph capturing finished in {seconds:.0f} secs, took {memory.graphs_gib:.2f} GiB"
        )

    async def _warmup(self, settings: EngineSettings, memory: MemoryPlan | None) -> None:
        await self._pass(_WARMUP_S)
        if memory is None:
            return
        m, share = memory, settings.gpu_memory_utilization
        wanted = share * m.total_gib
        fit = int((wanted - m.weights_gib - m.activation_gib - m.non_torch_gib - m.graphs_gib) * GIB)
        self.engine.info(
            "gpu_worker.py:857",
            f"Free memory on device ({m.free_at_start_gib:.2f}/{m.total_gib:.1f} GiB) on startup. Desired GPU memory "
            f"utilization is ({share}, {wanted:.2f} GiB). Actual usage is {m.weights_gib:.2f} GiB for weight, "
            f"{m.activation_gib:.2f} GiB for peak activation, {m.non_torch_gib:.2f} GiB for non-torch memory, and "
            f"{m.graphs_gib:.2f} GiB for CUDAGraph memory. Replace gpu_memory_utilization config with "
            f"`--kv-cache-memory={fit}` ({fit / GIB:.2f} GiB) to fit into requested memory. Current kv cache memory in "
            f"use is {m.kv_gib:.2f} GiB.",
        )
        self.engine.info(
            "core.py:340",
            f"init engine (profile, create kv cache, warmup model) took {self.seconds - self.before_init_s:.2f} s "
            f"(compilation: {self.compile_s:.2f} s)",
        )

    def _cached_compilation(self, settings: EngineSettings) -> bool:
        """vLLM's compile cache: warm for the same shape, format and batched tokens when VLLM_CACHE_ROOT persists."""
        root = self.environ.get("VLLM_CACHE_ROOT")
        if not root:
            return False
        s = settings
        key = repr((s.shape, s.dtype, s.weight_format, s.kv_format, s.max_num_batched_tokens, s.tensor_parallel))
        digest = hashlib.sha256(key.encode()).hexdigest()[:10]
        marker = Path(root) / "torch_compile_cache" / f"simulated-{digest}"
        if marker.exists():
            return True
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        return False

    def _banner(self) -> None:
        self.api.info("api_utils.py:345", f"vLLM stand-in (simulated), version {VERSION}, model {self.flags['model']}")
        shown = {key: value for key, value in self.flags.items() if key != "api_key"}
        self.api.info("api_utils.py:273", f"non-default args: {shown}")
        if self.environment.fault("log_flood"):
            for number in range(10_000):
                self.api.warning("flood.py:1", f"simulated flood {number:05d} " + "x" * 170)
        known = names("server", "variables")
        for name in self.environ:
            if name.startswith("VLLM_") and name not in known:
                self.api.warning("interface.py:200", f"Unknown vLLM environment variable detected: {name}")

    def _resolved(self, settings: EngineSettings) -> None:
        s = settings
        self.api.info("model.py:623", f"Resolved architecture: {s.shape.architecture}")
        self.api.info("model.py:1788", f"Using max model len {s.max_model_len}")
        if s.chunked_prefill:
            self.api.info(
                "scheduler.py:252",
                f"Chunked prefill is enabled with max_num_batched_tokens={s.max_num_batched_tokens}.",
            )
        state = "enabled" if s.async_scheduling else "disabled"
        self.api.info("vllm.py:1109", f"Asynchronous scheduling is {state}.")

    def _refused(self, refusal: ConfigRefusal) -> None:
        self.api.raw("Traceback (most recent call last):")
        self.api.raw('  File "vllm/engine/arg_utils.py", line 2838, in create_engine_config')
        for line in refusal.lines:
            self.api.raw(line)

    def _failed(self, failure: EngineFailure) -> None:
        for hint in failure.hints:
            self.engine.error("core.py:1510", hint)
        self.engine.error("core.py:1510", "EngineCore failed to start.")
        self.engine.error("core.py:1510", "Traceback (most recent call last):")
        self.engine.error("core.py:1510", '  File "vllm/v1/engine/core.py", line 1482, in run_engine_core')
        self.engine.error("core.py:1510", failure.error)
        self.engine_gone()

    def engine_gone(self) -> None:
        """The last words of vLLM's API server when its engine process has ended during the start."""
        self.api.raw("Traceback (most recent call last):")
        self.api.raw('  File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup')
        self.api.raw(
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {'EngineCore': 1}"
        )
