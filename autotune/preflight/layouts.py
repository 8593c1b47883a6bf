"""The layouts of a study before it runs: the GPUs that each takes and leaves idle, its links, and why it is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.host.topology import link_warning
from autotune.preflight.study import StudyPreflight
from autotune.space.catalogue import SpaceContext
from autotune.space.config import EngineConfig
from autotune.space.layout import Candidate, Layout
from autotune.space.space import SearchSpace

RATIO = "topology.prefill"


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One layout.

    Attributes:
        name: `tp2-dp1`, or `1 prefill, 3 decode` where a trial is several engines.
        gpus: GPUs that it takes.
        idle: GPUs of a trial that it leaves idle; the trial is charged for them.
        link: the slowest link inside its tensor parallel groups, empty where unknown or with one rank.
        refused: why it is never tried; empty where it may be.
        warning: what will make it slow; empty for nothing.
    """

    name: str
    gpus: int
    idle: int
    link: str = ""
    refused: str = ""
    warning: str = ""


def layout_rows(
    candidates: Iterable[Candidate],
    space: SearchSpace,
    baseline: EngineConfig,
    context: SpaceContext,
    preflight: StudyPreflight,
) -> tuple[LayoutRow, ...]:
    """Every layout that the study's space names, and every ratio of prefill to decode engines.

    A layout that nothing rules out is judged with the baseline's other settings.
    """
    fixed = dict(space.fixed)
    rows = [_row(found, baseline.merged(fixed), context, preflight) for found in candidates]
    ratios = [item for item in space.parameters if item.name == RATIO]
    if preflight.topology.split and not rows:
        values = ratios[0].values if ratios else (baseline.get(RATIO, 0),)
        rows = [_ratio(baseline.merged({**fixed, RATIO: value}), preflight) for value in values]
    return tuple(rows)


def link_warnings(space: SearchSpace, baseline: EngineConfig, context: SpaceContext) -> tuple[str, ...]:
    """What slow links will do to tensor parallel groups that may be tried, one sentence a size."""
    values = [str(value) for item in space.parameters if item.kind == "layout" for value in item.values]
    sizes = {Layout.parse(value).tensor for value in values} | {Layout.of(baseline).tensor}
    return tuple(text for size in sorted(sizes) if (text := link_warning(size, context.tensor_links)))


def _row(found: Candidate, base: EngineConfig, context: SpaceContext, preflight: StudyPreflight) -> LayoutRow:
    layout, link = found.layout, context.tensor_links.get(found.layout.tensor, "")
    refused = found.reason
    if not refused and not preflight.topology.split:
        judged = preflight.refusals(base.merged(layout.args))
        refused = judged[0].reason if judged else ""
    warning = link_warning(layout.tensor, context.tensor_links)
    idle = max(context.gpus - layout.gpus, 0) if context.gpus else 0
    return LayoutRow(str(layout), layout.gpus, idle, link, refused, warning if not refused else "")


def _ratio(config: EngineConfig, preflight: StudyPreflight) -> LayoutRow:
    plan = preflight.plan(config)
    counts: dict[str, int] = {}
    for member in plan.members:
        counts[member.role] = counts.get(member.role, 0) + 1
    words = {"replica": "replicas"}
    name = ", ".join(f"{count} {words.get(role, role)}" for role, count in counts.items())
    name = name or f"{config.get(RATIO)} prefill"
    sizes = {f"{member.role} {Layout.of(member.config)}" for member in plan.roles if Layout.of(member.config).gpus > 1}
    judged = preflight.refusals(config)
    label = f"{name} ({', '.join(sorted(sizes))})" if sizes else name
    return LayoutRow(label, sum(m.gpus for m in plan.members), plan.idle, refused=judged[0].reason if judged else "")
