"""The report as a picture: the page, seen by a browser without a screen; without a browser, the front by plotly."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from autotune.engine.supervised import launch
from autotune.errors import EnvironmentFault
from autotune.report.page import html_page
from autotune.report.values import ReportContent, Standing

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
WIDTH, HEIGHT = 1240, 2480
"""Pixels: from the summary down to the effects of the settings."""
DEADLINE = 60.0
"""Seconds for the browser."""
QUIET = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
"""No network and no profile of the user's."""


def write_picture(content: ReportContent, out: Path) -> None:
    """Write a PNG file.

    Raises:
        EnvironmentFault: there is neither a browser nor kaleido, or the browser failed.
    """
    browser = find_browser()
    if browser is not None:
        asyncio.run(_photograph(browser, html_page(content), out))
        return
    if importlib.util.find_spec("kaleido") is None:
        raise EnvironmentFault(
            "format png needs a browser (chromium or chrome) or kaleido, and neither is installed",
            hint="install one (apt install chromium, or pip install kaleido), or use --format html",
        )
    _plot(content, out)


def find_browser() -> str | None:
    """Path of a Chromium or Chrome, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


async def _photograph(browser: str, page: str, out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="autotune-report-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        (folder / "report.html").write_text(page, encoding="utf-8")
        shot = folder / "report.png"
        # Chromium refuses its sandbox to root; the page is our own file and forbids itself everything from outside.
        rootly = ("--no-sandbox",) if os.geteuid() == 0 else ()
        argv = (
            browser, *QUIET, *rootly, f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={shot}", f"{(folder / 'report.html').as_uri()}#light",
        )  # fmt: skip
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": scratch, "LANG": "C.UTF-8"}
        job = await launch(argv, env, folder=folder, log=folder / "browser.log", grace=2.0)
        try:
            async with asyncio.timeout(DEADLINE):
                await job.wait_over()
        except TimeoutError:
            raise EnvironmentFault(
                f"{browser} gave no picture within {DEADLINE:.0f} s", hint="use --format html"
            ) from None
        finally:
            await job.stop(2.0)
        if not shot.is_file() or shot.stat().st_size == 0:
            raise EnvironmentFault(f"{browser} gave no picture", hint="use --format html")
        shutil.copyfile(shot, out)


def _plot(content: ReportContent, out: Path) -> None:
    """The front alone, where there is no browser that could draw the page."""
    import plotly.graph_objects as go

    first, second = content.columns[0], content.columns[-1]
    figure = go.Figure()
    for standing in (Standing.FRONT, Standing.FEASIBLE, Standing.LIMIT, Standing.QUALITY):
        shown = [one for one in content.trials if one.standing is standing and one.objectives and not one.repeat]
        figure.add_trace(
            go.Scatter(
                x=[one.objectives[-1].value for one in shown],
                y=[one.objectives[0].value for one in shown],
                mode="markers",
                name=str(standing),
            )
        )
    title = f"{content.name}{' (simulated)' if content.simulated else ''}"
    figure.update_layout(
        title=title, xaxis_title=f"{second.title} ({second.unit})", yaxis_title=f"{first.title} ({first.unit})"
    )
    figure.write_image(str(out), format="png", width=1200, height=700)
