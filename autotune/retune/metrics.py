"""The tuner's own figures in Prometheus' text format: a file for node_exporter's textfile collector, or a page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from autotune.errors import EnvironmentFault
from autotune.replaced import replaced
from autotune.retune.state import State
from autotune.retune.triggers import standing
from autotune.retune.verdict import Verdict


def metrics_text(study: str, state: State, drop: float) -> str:
    """All figures; times are Unix seconds, `drop` is the canary's limit."""
    name = study.replace("\\", "\\\\").replace('"', '\\"')
    label = f'study="{name}"'
    lines: list[str] = []

    def metric(key: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
        lines.append(f"# HELP autotune_retune_{key} {text}")
        lines.append(f"# TYPE autotune_retune_{key} {kind}")
        lines.extend(f"autotune_retune_{key}{{{label}{more}}} {value:.15g}" for more, value in samples)

    verdicts = Counter(one.verdict for one in state.passes)
    metric(
        "passes_total", "counter", "Passes by how they ended.",
        *((f',verdict="{verdict.value}"', float(verdicts[verdict.value])) for verdict in Verdict),
    )  # fmt: skip
    metric("gpu_hours_total", "counter", "GPU hours of all passes.", ("", sum(one.gpu_hours for one in state.passes)))
    metric("version", "gauge", "Number of the deployed version.", ("", float(state.current)))
    metric("versions", "gauge", "Versions in the history.", ("", float(len(state.versions))))
    metric("waiting", "gauge", "1 while a version waits for a person.", ("", float(state.pending is not None)))
    metric("unfinished", "gauge", "1 while a re-tuning waits for its next pass.", ("", float(state.tuning is not None)))
    if state.passes:
        last = state.passes[-1]
        metric("last_pass_timestamp_seconds", "gauge", "When the last pass ended.", ("", last.at))
        metric("last_pass_duration_seconds", "gauge", "How long it took.", ("", last.at - last.began))
    if (now := standing(state.canaries, drop)) is not None:
        text = "The last canary against its reference since the last tuning."
        metric("canary_ratio", "gauge", text, ("", 1 - now.loss))
    incumbent = state.incumbent
    if incumbent is not None and incumbent.gains:
        metric("gain_lower_bound", "gauge", "Lower bound of the deployed version's gain.", ("", incumbent.gains[0][2]))
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def served(address: str, text: Callable[[], str]) -> AsyncIterator[str]:
    """Answer `GET /metrics` while this lasts; gives back the URL.

    Args:
        address: `host:port`.
        text: makes the page anew for every question.

    Raises:
        EnvironmentFault: the address cannot be listened on.
    """

    async def answer(_: web.Request) -> web.Response:
        body = await asyncio.to_thread(text)
        return web.Response(text=body, content_type="text/plain", charset="utf-8")

    host, _, port = address.rpartition(":")
    application = web.Application()
    application.router.add_get("/metrics", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            hint = "another address in `retune.metrics_listen`"
            raise EnvironmentFault(f"{address} cannot be listened on: {error.strerror}", hint=hint) from error
        yield f"http://{host}:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def write_metrics(path: Path, text: str) -> None:
    """Replace the file in one step: a collector never reads half of it.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        with replaced(path) as partial:
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o644)
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror}", hint="correct `metrics_file`") from error
