"""The history as rows for a table and as a plot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotune.retune.ledger import State
from autotune.retune.triggers import ROUNDS


@dataclass(frozen=True, slots=True)
class Row:
    """One pass.

    Attributes:
        at: when it ended, UTC.
        version: deployed after it.
        gain: of that version over the one before it, empty where none was promoted here.
        reasons: one sentence each.
    """

    at: str
    verdict: str
    version: int
    gain: str
    gpu_hours: float
    reasons: tuple[str, ...]


def rows(state: State) -> tuple[Row, ...]:
    """All passes, oldest first."""
    found, before = [], 0
    for one in state.passes:
        version = state.version(one.version)
        promoted = version is not None and one.version != before and version.gains
        gain = f"x{version.gains[0][1]:.3f} [{version.gains[0][2]:.3f}, {version.gains[0][3]:.3f}]" if (
            promoted and version
        ) else ""  # fmt: skip
        at = f"{datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M}"
        found.append(Row(at, one.verdict, one.version, gain, one.gpu_hours, one.reasons))
        before = one.version
    return tuple(found)


def write_plot(study: str, state: State, out: Path) -> None:
    """A page with the canaries and the versions over time; it needs no network."""
    import plotly.graph_objects as go  # a second that other commands need not spend

    figure = go.Figure()
    known = [one for one in state.canaries if one.incumbent is not None]
    for name, values in (
        ("incumbent", [one.incumbent for one in known]),
        ("baseline", [one.baseline for one in known]),
    ):
        times = [datetime.fromtimestamp(one.at, UTC) for one in known]
        figure.add_scatter(x=times, y=values, mode="lines+markers", name=f"canary: {name} (median of {ROUNDS})")
    ends = [datetime.fromtimestamp(one.at, UTC) for one in state.passes]
    figure.add_scatter(
        x=ends, y=[one.version for one in state.passes], mode="lines+markers", line_shape="hv", name="version",
        yaxis="y2", text=[f"{one.verdict}: {one.reasons[-1]}" for one in state.passes],
    )  # fmt: skip
    figure.update_layout(
        title=f"{study}: re-tuning", yaxis_title="first objective", hovermode="x unified",
        yaxis2={"title": "version", "overlaying": "y", "side": "right", "dtick": 1},
    )  # fmt: skip
    figure.write_html(out, include_plotlyjs=True)
