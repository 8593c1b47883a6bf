"""`autotune explain`: why a vLLM log ends the way it does."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autotune.cli.terminal import terminal
from autotune.engine.failures import Action, Cause, Failure, FailureContext, classify, read_log
from autotune.engine.kernellog import KernelFindings, read_kernel_log
from autotune.engine.notices import Notice, NoticeKind
from autotune.engine.startlog import StartLog
from autotune.errors import SpecError

_CAUSES = {
    Cause.CONFIG: "the configuration",
    Cause.ENVIRONMENT: "the machine or the installation, not the configuration",
    Cause.TRANSIENT: "a passing fault",
    Cause.UNKNOWN: "not known",
}
_ACTIONS = {
    Action.LEARN: "count this configuration as infeasible",
    Action.QUARANTINE_VALUE: "count it as infeasible and never propose the value again",
    Action.RETRY_ONCE: "run the same configuration once more, learn nothing",
    Action.STOP_IF_REPEATS: "run it once more; stop if it happens again",
    Action.STOP: "stop: every other configuration would fail as well",
}


def explain(
    logfile: Annotated[str, typer.Argument(help="A vLLM log, or - for standard input.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exit_code: Annotated[int | None, typer.Option(help="Exit code of vllm serve, where you know it.")] = None,
    kernel_log: Annotated[
        Path | None, typer.Option(help="Kernel log of the same time (dmesg), for Xids and out-of-memory kills.")
    ] = None,
) -> None:
    """Say why an engine failed: class, cause, the deciding lines, and what to do. Secrets in the log are not shown."""
    start = StartLog()
    context = FailureContext(kernel=_kernel(kernel_log))
    lines = _lines(logfile)
    first = list(islice(lines, 1))
    if not first and exit_code is None and kernel_log is None:
        hint = "an engine that was killed before it wrote anything is explained by --exit-code or --kernel-log"
        raise SpecError("is empty", file=logfile, hint=hint)
    failure = classify(_fed(start, chain(first, lines)), exit_code=exit_code, context=context)
    if json:
        typer.echo(json_module.dumps(_as_json(failure, start), indent=2, ensure_ascii=False))
    else:
        _show(terminal(markup=True), failure, start)


def _lines(logfile: str) -> Iterator[str]:
    if logfile == "-":
        yield from (raw.decode("utf-8", "replace").rstrip("\r\n") for raw in sys.stdin.buffer)
        return
    try:
        yield from read_log(Path(logfile))
    except OSError as error:
        raise SpecError(
            f"cannot be read: {error.strerror}", file=logfile, hint="Give the path of a log, or - for standard input."
        ) from error


def _kernel(path: Path | None) -> KernelFindings:
    return read_kernel_log(_lines(str(path))) if path is not None else KernelFindings()


def _fed(start: StartLog, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        start.feed(line)
        yield line


def _warnings(start: StartLog) -> list[Notice]:
    return [notice for notice in start.notices if notice.kind is not NoticeKind.NOTE]


def _as_json(failure: Failure, start: StartLog) -> dict[str, object]:
    return {
        "class": failure.failure_class.value,
        "cause": failure.cause.value,
        "action": failure.action.value,
        "stage": failure.stage.value if failure.stage else None,
        "signature": failure.signature_id,
        "lines": [{"number": line.number, "text": line.text} for line in failure.lines],
        "advice": [
            {"parameter": item.parameter, "direction": item.direction.value, "value": item.value, "text": item.text}
            for item in failure.advice
        ],
        "quarantine": [{"parameter": name, "value": value} for name, value in failure.quarantine],
        "warnings": [
            {"kind": notice.kind.value, "parameter": notice.parameter, "line": notice.line, "text": notice.text}
            for notice in _warnings(start)
        ],
        "phases": [{"name": phase.name, "seconds": phase.seconds} for phase in start.phases],
        "vllm_version": start.facts.vllm_version,
    }


def _show(console: Console, failure: Failure, start: StartLog) -> None:
    if not failure.found:
        console.print("[bold green]No failure[/] in this log.")
    else:
        _show_failure(console, failure)
    if warnings := _warnings(start):
        console.print("\n[bold]Worth knowing[/] (no failures)")
        for notice in warnings:
            console.print(f"  line {notice.line}, {notice.kind.value}: {escape(notice.text)}", soft_wrap=True)
    if start.facts.vllm_version:
        spent = ", ".join(f"{phase.name} {phase.seconds:g} s" for phase in start.phases if phase.seconds > 0)
        console.print(f"\n[dim]vLLM {escape(start.facts.vllm_version)}{f'; stages: {spent}' if spent else ''}[/]")


def _show_failure(console: Console, failure: Failure) -> None:
    style = "bold red" if failure.known else "bold yellow"
    console.print(f"[{style}]{escape(failure.failure_class.value)}[/]", end="")
    console.print(f"  in the stage {failure.stage.value}" if failure.stage else "")
    table = Table.grid(padding=(0, 2))
    table.add_row("cause", _CAUSES[failure.cause])
    table.add_row("action", _ACTIONS[failure.action])
    for name, value in failure.quarantine:
        table.add_row("quarantine", escape(f"{name} = {value}"))
    console.print(table)
    if failure.lines:
        console.print("\n[bold]Deciding lines[/]")
    for line in failure.lines:
        place = f"{line.number:>7}" if line.number else "   host"
        console.print(f"{place}  {escape(line.text)}", soft_wrap=True)
    if failure.advice:
        console.print("\n[bold]What helps[/]")
    for item in failure.advice:
        what = f"[bold]{escape(item.parameter)}[/] ({item.direction.value}): " if item.parameter else ""
        console.print(f"  - {what}{escape(item.text)}", soft_wrap=True)
