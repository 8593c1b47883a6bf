"""`autotune run`: tune."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from autotune.assembly import StudyParts, assemble
from autotune.cli.split_text import split_commands
from autotune.cli.terminal import terminal
from autotune.cli.views import JsonView, LiveView, PlainView, front_table
from autotune.errors import SpecError
from autotune.events import Observer
from autotune.report.wording import count_text, duration_text
from autotune.result import StudyResult, busy_seconds
from autotune.search.account import ACCOUNT, SpaceAccount
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study

NO_REPEAT = """\
note: a simulated engine in real time is measured a little differently at every run, whatever the seed.
  For a study that repeats itself: --set engine.simulate.clock=virtual"""


def run(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    trials: Annotated[int | None, typer.Option(help="Measured configurations; overrides search.trials.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search; overrides search.seed.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set load.levels=[8].")] = None,
    like: Annotated[Path | None, typer.Option(help="Start from the measurements of this older study.")] = None,
    json_events: Annotated[bool, typer.Option("--json", help="One JSON object per event on stdout.")] = False,
    plain: Annotated[bool, typer.Option(help="Plain lines instead of the live screen.")] = False,
) -> None:
    """Tune: measure the baseline, search, confirm the winner. Run it again to go on after any interruption."""
    overrides = list(setting or [])
    if trials is not None:
        overrides.append(f"search.trials={trials}")
    if seed is not None:
        overrides.append(f"search.seed={seed}")
    opened = open_study(study, overrides)
    engine = opened.spec.engine
    if seed is not None and engine.kind == "simulated" and not engine.virtual:
        print(NO_REPEAT, file=sys.stderr)
    if like is not None and like.resolve() == study.resolve():
        hint = "name an earlier study; to go on with this one, leave --like out"
        raise SpecError("is the study itself", file=like, key="--like", hint=hint)
    code = asyncio.run(_run(opened, like, json_events=json_events, plain=plain))
    if code:
        raise typer.Exit(code)


async def _run(study: Study, like: Path | None, *, json_events: bool, plain: bool) -> int:
    """Run until done or interrupted; SIGTERM is treated like Ctrl-C: stop the engine, keep everything, leave."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with study.locked():
        parts = await assemble(study, like=like)
        console = terminal()
        view, screen = _view(parts, console, json_events=json_events, plain=plain)
        try:
            with screen:
                result = await parts.run(view)
        except asyncio.CancelledError:
            kept = "interrupted: engines are stopped, finished trials are kept."
            print(f"{kept} Go on with: {_program()} run {shlex.quote(str(study.path))}", file=sys.stderr)
            return 130
        finally:
            parts.close()
    if not json_events:
        print_result(result, parts, console, study)
    return 0


def _view(
    parts: StudyParts, console: Console, *, json_events: bool, plain: bool
) -> tuple[Observer, AbstractContextManager[object]]:
    if json_events:
        return JsonView(parts.objectives), nullcontext()
    if plain or not console.is_terminal:
        return PlainView(parts.objectives, parts.baseline), nullcontext()
    view = LiveView(parts.objectives, parts.baseline, console)
    return view, view


def print_result(result: StudyResult, parts: StudyParts, console: Console, study: Study) -> None:
    """The front, the recommendation against the baseline, and the command that starts it."""
    console.print()
    if result.front:
        console.print(front_table(list(result.front), result.objectives, parts.baseline))
    console.print()
    for sentence in result.summary:
        console.print(Text(sentence), soft_wrap=True)
    store = study.existing_store()
    account = store.read(*ACCOUNT, SpaceAccount.from_json)
    store.close()
    if account is not None:
        console.print(Text(account.sentence), soft_wrap=True)
    spent = duration_text(busy_seconds(result.records))
    spent += " of simulated time" if parts.spec.engine.virtual else ""
    made = count_text(len(result.records), "trial")
    console.print(Text(f"{made} in {spent}; all of it is in {result.folder}", style="dim"), soft_wrap=True)
    if result.recommendation is not None:
        console.print()
        console.print(Text("start it with", style="dim"))
        for line in _start_lines(parts, result.recommendation.config):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    console.print(Text("look further with", style="dim"))
    # Exported files start one engine.
    exported = () if parts.spec.topology.split else ("export",)
    for one in ("show", "report", "dashboard", *exported):
        console.print(Text(f"  {_program()} {one} {shlex.quote(str(study.path))}"), soft_wrap=True)


def _program() -> str:
    """How this program was called: a line that is printed can be copied, also where it is not on the PATH."""
    called = Path(sys.argv[0])
    found = shutil.which("autotune")
    on_path = found is not None and called.exists() and Path(found).samefile(called)
    return "autotune" if on_path or called.name != "autotune" else str(called)


def _start_lines(parts: StudyParts, config: EngineConfig) -> list[str]:
    """Shell commands, one for each engine and for the router where a trial is several."""
    several = split_commands(parts.spec, config, parts.trial_gpus)
    return [f"{command}  # {name}" for name, command in several] or [parts.command(config)]
