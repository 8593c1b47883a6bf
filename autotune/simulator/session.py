"""From a finished start to the end of the server: HTTP, the periodic statistics line, faults, shutdown."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .config import EngineSettings
from .driver import LoadFaults, RealTimeEngine
from .faults import SimulationEnvironment
from .memory import MemoryPlan
from .server import ServerState, build_app

if TYPE_CHECKING:
    from .serve import ServerProcess

_STATISTICS_S = 10.0  # simulated seconds between two statistics lines


def _load_faults(environment: SimulationEnvironment) -> LoadFaults:
    return LoadFaults(
        die_at_running=int(environment.number("die_under_load", 4)) if environment.fault("die_under_load") else 0,
        die_after_finished=int(environment.number("die_after", 10)) if environment.fault("die_after") else 0,
        hang_at_running=int(environment.number("hang_under_load", 4)) if environment.fault("hang_under_load") else 0,
    )


def _state(process: ServerProcess, engine: RealTimeEngine) -> ServerState:
    flags = process.flags
    model = str(flags["model"])
    names = flags.get("served_model_name")
    keys = flags.get("api_key")
    secret = process.environ.get("VLLM_API_KEY")
    return ServerState(
        settings=engine.settings,
        engine=engine,
        environment=process.environment,
        names=tuple(str(name) for name in names) if isinstance(names, list) else (model,),
        keys=tuple(str(key) for key in keys) if isinstance(keys, list) else ((secret,) if secret else ()),
        model_path=model,
        log=process.api,
        log_requests=not flags.get("disable_uvicorn_access_log", False),
    )


async def serve(process: ServerProcess, listener: socket.socket, settings: EngineSettings, memory: MemoryPlan) -> int:
    """Serve until a signal (exit code 0) or the engine's death (exit code 0 too, as vLLM)."""
    environment = process.environment
    faults = _load_faults(environment)
    engine = RealTimeEngine(settings, memory, environment.speed, environment.noise, environment.seed, faults)
    app = build_app(_state(process, engine))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        code = await _serve(process, engine, web.SockSite(runner, listener))
    finally:  # a task can be killed here; nothing of it may answer afterwards
        engine.die()
        await asyncio.sleep(0)
        await runner.cleanup()
    if code == 0:
        process.api.web("Application shutdown complete.")
    return code


async def _serve(process: ServerProcess, engine: RealTimeEngine, site: web.SockSite) -> int:
    try:
        await site.start()
    except OSError as error:  # another process bound the same port while this one was starting
        process.api.raw(f"OSError: {error}")
        return 1
    process.routes()
    await _until_the_end(process, engine)
    if engine.died.is_set():
        _died(process, engine)
        await asyncio.sleep(0.2)  # lets the error answers leave, as vLLM's shutdown does
    process.api.info("launcher.py:100", "[shutdown] API server: shutdown triggered")
    process.api.web("Shutting down")
    return 0


async def _until_the_end(process: ServerProcess, engine: RealTimeEngine) -> None:
    """Wait for a signal, the engine's death, or an ordered end."""
    statistics = asyncio.ensure_future(_statistics(process, engine))
    ends: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(process.stop.wait()),
        asyncio.ensure_future(engine.died.wait()),
    ]
    if process.child is not None:
        ends.append(asyncio.ensure_future(_engine_process_ended(process.child, engine)))
    if process.environment.fault("exit_after_ready"):
        ends.append(asyncio.ensure_future(asyncio.sleep(1.0)))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (statistics, *ends):
            task.cancel()


async def _engine_process_ended(child: asyncio.subprocess.Process, engine: RealTimeEngine) -> None:
    """vLLM's API server watches its engine process and goes when that has gone."""
    await child.wait()
    engine.die()


def _died(process: ServerProcess, engine: RealTimeEngine) -> None:
    if engine.cause is not None:
        process.engine_log.error("core.py:1520", "EngineCore encountered a fatal error.")
        process.engine_log.error("core.py:1520", "Traceback (most recent call last):")
        process.engine_log.error("core.py:1520", engine.cause.error)
    process.api.warning("core_client.py:817", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup")
    process.api.error("async_llm.py:906", "AsyncLLM output_handler failed.")
    process.api.error(
        "async_llm.py:906",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
        "root cause.",
    )


async def _statistics(process: ServerProcess, engine: RealTimeEngine) -> None:
    """The line vLLM's loggers write every ten seconds while something happens."""
    interval = max(0.5 * process.environment.speed, _STATISTICS_S)  # simulated seconds
    prompt = generated = late = 0
    while True:
        await asyncio.sleep(interval / process.environment.speed)
        if engine.late_steps > late:
            process.api.warning(
                "driver.py:1",
                f"simulated: {engine.late_steps - late} steps came late, the worst by {engine.worst_lag_s:.3f} s of "
                f"wall time: too busy a machine for AUTOTUNE_SIM_SPEED={process.environment.speed:g} at this load; "
                "what clients measure now is too slow.",
            )
            late = engine.late_steps
        for rank, state in enumerate(engine.states()):
            if rank == 0:
                new_prompt, new_generated = state.prompt_tokens - prompt, state.generation_tokens - generated
                prompt, generated = state.prompt_tokens, state.generation_tokens
                if not (new_prompt or new_generated or state.running):
                    continue
                hit = 100 * state.prefix_hits / state.prefix_queries if state.prefix_queries else 0.0
                process.api.info(
                    "loggers.py:310",
                    f"Engine 000: Avg prompt throughput: {new_prompt / interval:.1f} tokens/s, "
                    f"Avg generation throughput: {new_generated / interval:.1f} tokens/s, "
                    f"Running: {state.running} reqs, Waiting: {state.waiting} reqs, "
                    f"GPU KV cache usage: {100 * state.kv_usage:.1f}%, Prefix cache hit rate: {hit:.1f}%",
                )
