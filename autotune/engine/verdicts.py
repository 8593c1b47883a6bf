"""Failures that the process room sees itself, in the words of the classifier."""

from __future__ import annotations

from autotune.engine.failure_values import (
    Action,
    Advice,
    Cause,
    DecidingLine,
    Direction,
    Failure,
    FailureClass,
)
from autotune.engine.stages import Stage


def _seen(text: str) -> tuple[DecidingLine, ...]:
    return (DecidingLine(0, text),)


def port_taken(port: int, why: str) -> Failure:
    """The leased port could not be held."""
    return Failure(
        FailureClass.PORT_IN_USE,
        Cause.TRANSIENT,
        Action.RETRY_ONCE,
        _seen(f"port {port} is taken: {why}"),
        (Advice("", Direction.NONE, "Another process took the port; the next start gets a fresh one."),),
        signature_id="own_port_taken",
        stage=Stage.CLI,
    )


def not_ours(port: int, why: str) -> Failure:
    """Something answers on the port, and it is not the engine that was started."""
    return Failure(
        FailureClass.PORT_IN_USE,
        Cause.ENVIRONMENT,
        Action.STOP_IF_REPEATS,
        _seen(f"the server on port {port} is not the engine of this trial: {why}"),
        (Advice("", Direction.NONE, f"Find the other server with `ss -ltnp 'sport = :{port}'` and stop it."),),
        signature_id="own_foreign_server",
        stage=Stage.SERVING,
    )


def cannot_execute(error: str) -> Failure:
    """The interpreter or the command could not be executed at all."""
    return Failure(
        FailureClass.INSTALL_BROKEN,
        Cause.ENVIRONMENT,
        Action.STOP,
        _seen(f"the engine's command cannot be run: {error}"),
        (Advice("", Direction.NONE, "Check `engine.python` (or the first word of `engine.command.start`)."),),
        signature_id="own_cannot_execute",
        stage=Stage.CLI,
    )


def phase_timeout(stage: Stage, seconds: float) -> Failure:
    """A stage of the start took longer than it may."""
    return Failure(
        FailureClass.STALL,
        Cause.UNKNOWN,
        Action.RETRY_ONCE,
        _seen(f"the start stood still in the stage {stage.value} for {seconds:.0f} s without a word in the log"),
        (
            Advice(
                "",
                Direction.NONE,
                f"Look at the end of the log. Where this stage may really be silent for so long, raise "
                f"`engine.phase_timeouts: {{{stage.value}: ...}}`.",
            ),
        ),
        signature_id="own_phase_timeout",
        stage=stage,
    )


def ready_timeout(stage: Stage, seconds: float) -> Failure:
    """The whole start took longer than it may."""
    return Failure(
        FailureClass.READY_TIMEOUT,
        Cause.UNKNOWN,
        Action.RETRY_ONCE,
        _seen(f"not ready after {seconds:.0f} s; the last stage was {stage.value}"),
        (Advice("", Direction.NONE, "Raise `engine.ready_timeout` where the start is only slow (a first compile)."),),
        signature_id="own_ready_timeout",
        stage=stage,
    )


def not_serving(why: str) -> Failure:
    """/health says yes, a request gets no token."""
    return Failure(
        FailureClass.UNKNOWN,
        Cause.UNKNOWN,
        Action.RETRY_ONCE,
        _seen(f"the engine says that it is healthy but answers no request: {why}"),
        signature_id="own_not_serving",
        stage=Stage.SERVING,
    )


def no_such_split(problem: str) -> Failure:
    """The trial's GPUs cannot hold the engines that are asked for."""
    return Failure(
        FailureClass.TP_EXCEEDS_GPUS,
        Cause.CONFIG,
        Action.LEARN,
        _seen(problem),
        (Advice("topology.prefill", Direction.DOWN, "Ask for fewer or smaller engines, or give the trial more GPUs."),),
        signature_id="own_no_such_split",
        stage=Stage.CLI,
    )


def router_died(code: int | None) -> Failure:
    """The router before the engines is gone; the engines may be well."""
    return Failure(
        FailureClass.UNKNOWN,
        Cause.TRANSIENT,
        Action.RETRY_ONCE,
        _seen(f"the router ended ({'lost' if code is None else f'exit code {code}'}); see router.log"),
        signature_id="own_router_died",
        stage=Stage.SERVING,
    )


def died(stage: Stage, code: int | None) -> Failure:
    """The process ended and its log says nothing about why."""
    how = (
        "was lost" if code is None else f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
    )
    killed = code in (-9, 137)
    return Failure(
        FailureClass.KILLED if killed else FailureClass.UNKNOWN,
        Cause.TRANSIENT if killed else Cause.UNKNOWN,
        Action.RETRY_ONCE,
        _seen(f"the engine {how} in the stage {stage.value}, and its log does not say why"),
        signature_id="own_died",
        stage=stage,
    )


def hang(seconds: float, running: float) -> Failure:
    """No token for too long while requests run."""
    return Failure(
        FailureClass.STALL,
        Cause.UNKNOWN,
        Action.RETRY_ONCE,
        _seen(f"no token for {seconds:.0f} s while {running:.0f} requests are running"),
        (Advice("", Direction.NONE, "Raise `engine.hang_timeout` where one step can really take so long."),),
        signature_id="own_hang",
        stage=Stage.SERVING,
    )


def unreachable(url: str, why: str) -> Failure:
    """A server of somebody else cannot be measured."""
    return Failure(
        FailureClass.UNKNOWN,
        Cause.ENVIRONMENT,
        Action.STOP_IF_REPEATS,
        _seen(f"the server at {url} cannot be measured: {why}"),
        (Advice("", Direction.NONE, "Check `engine.url`, the key, `engine.served_model`, and that the server runs."),),
        signature_id="own_unreachable",
    )
