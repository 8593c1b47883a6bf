"""`autotune schedule`: passes on a schedule, as a service."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from autotune.engine.giveway import cancel_on_signals
from autotune.errors import SpecError
from autotune.retune.install import Place, kubernetes_manifest, systemd_unit
from autotune.retune.metrics import served
from autotune.retune.schedule import Schedule
from autotune.retune.service import Service, WallClock, first_start
from autotune.retune.session import Session, opened
from autotune.spec.retune import RetuneSpec
from autotune.study import open_study


def schedule(
    study: Annotated[Path, typer.Argument(help="The study file of a study that has been run.", show_default=False)],
    cron: Annotated[str | None, typer.Option(help="Five cron fields; overrides retune.cron.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Time zone; overrides retune.timezone.")] = None,
    install: Annotated[str | None, typer.Option(help="Print a unit instead: systemd or kubernetes.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --install: the file to write.")] = None,
    image: Annotated[str, typer.Option(help="With --install kubernetes: the image with autotune and vLLM.")] = "",
    user: Annotated[str, typer.Option(help="With --install systemd: who runs it. Default: root.")] = "",
) -> None:
    """Run passes on a schedule until stopped; SIGTERM makes a running pass give way."""
    overrides = [f"retune.cron={cron!r}"] if cron else []
    overrides += [f"retune.timezone={timezone}"] if timezone else []
    opened_study = open_study(study, overrides)
    spec = opened_study.spec.retune or RetuneSpec()
    Schedule.of(spec, opened_study.spec.name)  # a wrong expression is told now, not on the first Sunday
    if install is not None:
        gpus = opened_study.spec.hardware.gpus
        place = Place(
            opened_study.spec.name, study.absolute(), sys.executable, cron or "", timezone or "", user, image,
            gpus if gpus is not None else 1,
        )  # fmt: skip
        _install(install, place, spec, out)
        return
    with opened(opened_study) as session:
        code = asyncio.run(_serve(session))
    if code:
        raise typer.Exit(code)


def _install(kind: str, place: Place, spec: RetuneSpec, out: Path | None) -> None:
    if kind == "systemd":
        text = systemd_unit(place, spec)
    elif kind == "kubernetes":
        if not place.image:
            raise SpecError("a CronJob needs an image", key="--image", hint="one that has autotune and vLLM installed")
        text = kubernetes_manifest(place, spec, datetime.now(UTC))
    else:
        raise SpecError(f"--install {kind!r} is unknown", hint="systemd or kubernetes")
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {out}: {error.strerror}", hint="give another --out") from error
    typer.echo(f"wrote {out}")


async def _serve(session: Session) -> int:
    cancel_on_signals()
    service = Service(
        session.schedule, session.spec.budget.time, WallClock(), partial(session.run_scheduled, say=_say),
        partial(first_start, session.ledger), _say,
    )  # fmt: skip
    try:
        for reason in await session.recover():
            _say(reason)
        async with AsyncExitStack() as stack:
            if (address := session.spec.metrics_listen) is not None:
                _say(f"metrics at {await stack.enter_async_context(served(address, session.metrics))}")
            await service.serve()
    except asyncio.CancelledError:
        _say("stopped; the next start goes on")
        return 130
    return 0


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)
