"""The history as rows for a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import EnvironmentFault
from autotune.retune.ledger import Approval, Canary, Entry, PassEnded, SwitchBegan, SwitchEnded, Version
from autotune.retune.triggers import ROUNDS
from autotune.retune.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Row:
    """One pass, or what a person did between two passes.

    Attributes:
        at: when it ended, UTC.
        verdict: how a pass ended; `approved`, `refused` or `rolled back` for a person, `restored` for a change that was
            killed and undone.
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


def rows(entries: Sequence[Entry]) -> tuple[Row, ...]:
    """All passes and everything that happened between them, oldest first."""
    versions = {one.number: one for one in entries if isinstance(one, Version)}
    passes = [one for one in entries if isinstance(one, PassEnded)]
    found: list[Row] = []
    current, began = 0, None
    for entry in entries:
        if isinstance(entry, PassEnded):
            gain = _gain(versions.get(entry.version)) if entry.verdict == Verdict.PROMOTED else ""
            found.append(_row(entry.at, entry.verdict, entry.version, entry.reasons, gain, entry.gpu_hours))
        elif isinstance(entry, Approval):
            word = "approved" if entry.granted else "refused"
            found.append(_row(entry.at, word, current, (f"version {entry.version} is {word} by {entry.by}",)))
        elif isinstance(entry, SwitchBegan):
            began = entry
        elif isinstance(entry, SwitchEnded):
            current = entry.current
            if began is not None and not any(one.began <= entry.at <= one.at for one in passes):
                done = began.change == "rollback" and entry.current == began.after
                word = Verdict.ROLLED_BACK.value if done else "restored"
                found.append(_row(entry.at, word, current, (began.why, entry.sentence)))
    return tuple(found)


def _row(
    at: float, verdict: str, version: int, reasons: tuple[str, ...], gain: str = "", gpu_hours: float = 0.0
) -> Row:  # fmt: skip
    return Row(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}", verdict, version, gain, gpu_hours, reasons)


def _gain(version: Version | None) -> str:
    if version is None or not version.gains:
        return ""
    _, ratio, low, high = version.gains[0]
    return f"x{ratio:.3f} [{low:.3f}, {high:.3f}]"


def write_plot(study: str, entries: Sequence[Entry], out: Path) -> None:
    """A page with all canaries and the versions over time; it needs no network.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    import plotly.graph_objects as go  # a second that other commands need not spend

    figure = go.Figure()
    known = [one for one in entries if isinstance(one, Canary) and one.incumbent is not None]
    passes = [one for one in entries if isinstance(one, PassEnded)]
    for name, values in (
        ("incumbent", [one.incumbent for one in known]),
        ("baseline", [one.baseline for one in known]),
    ):
        times = [datetime.fromtimestamp(one.at, UTC) for one in known]
        figure.add_scatter(x=times, y=values, mode="lines+markers", name=f"canary: {name} (median of {ROUNDS})")
    ends = [datetime.fromtimestamp(one.at, UTC) for one in passes]
    figure.add_scatter(
        x=ends, y=[one.version for one in passes], mode="lines+markers", line_shape="hv", name="version",
        yaxis="y2", text=[f"{one.verdict}: {one.reasons[-1]}" for one in passes],
    )  # fmt: skip
    figure.update_layout(
        title=f"{study}: re-tuning", yaxis_title="first objective", hovermode="x unified",
        yaxis2={"title": "version", "overlaying": "y", "side": "right", "dtick": 1},
    )  # fmt: skip
    try:
        figure.write_html(out, include_plotlyjs=True)
    except OSError as error:
        raise EnvironmentFault(f"{out} cannot be written: {error.strerror}", hint="give another --plot") from error
