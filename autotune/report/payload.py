"""A report's values as JSON that may stand inside an HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

from autotune.load.report import Estimate
from autotune.report.values import LevelView, ReportContent, TrialView
from autotune.report.wording import metric_title, metric_unit

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

SHOWN = (
    "output_throughput", "total_throughput", "request_throughput", "goodput", "goodput_share", "error_share",
    "tokens_per_joule",
    *(f"{name}_p{percentile}_ms" for name in ("ttft", "tpot", "itl", "e2e") for percentile in (50, 75, 90, 95, 99)),
)  # fmt: skip
"""Metrics that a page carries for every trial and level; the other formats have all of them."""


def plain(value: object) -> Json:
    """Any of a report's values as JSON: estimates become [value, low, high], what is not finite becomes null."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return short(value)
    if isinstance(value, Estimate):
        return [short(value.value), short(value.low), short(value.high)]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} is no value of a report")


def exact(value: object) -> Json:
    """Any of a report's values as JSON with full precision; estimates become {value, low, high, n}, paths names."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Estimate):
        return {"value": _finite(value.value), "low": _finite(value.low), "high": _finite(value.high), "n": value.n}
    if isinstance(value, float):
        return _finite(value)
    if is_dataclass(value):
        return {field.name: exact(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and all(isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in value):
            return {name: exact(item) for name, item in value}
        return [exact(item) for item in value]
    return plain(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def short(value: float) -> float | int | None:
    """Five significant digits; None where it is not finite, as JSON has no such numbers."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded


def page_data(content: ReportContent) -> Json:
    """What the page's script needs; everything else is in its text already."""
    trials = [_trial(trial, content) for trial in content.trials]
    keys = {*SHOWN, *_keys(content)}
    found = {key for trial in content.trials for level in trial.levels for key, _ in level.figures}
    return {
        "columns": [{**_dict(plain(column)), "key": _key(column.label)} for column in content.columns],
        "limits": plain(dict(content.limits)),
        "metrics": {key: [metric_title(key), metric_unit(key)] for key in sorted(keys & found)},
        "chosen": content.chosen,
        "baseline": content.baseline,
        "trials": list(trials),
        "settings": plain(content.settings),
        "fits": plain(content.fits),
        "spending": plain(content.spending),
        "quality": plain(content.quality),
    }


def _dict(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


def _trial(trial: TrialView, content: ReportContent) -> Json:
    wanted = {*SHOWN, *_keys(content)}
    body = {name: item for name, item in _dict(plain(trial)).items() if item not in ("", [], {})}
    if trial.levels:
        body["levels"] = [_level(level, wanted) for level in trial.levels]
    return body


def _level(level: LevelView, wanted: set[str]) -> Json:
    body = _dict(plain(level))
    body["figures"] = plain({key: estimate for key, estimate in level.figures if key in wanted})
    body["engine"] = plain(dict(level.engine))
    return {name: item for name, item in body.items() if item not in ("", [], {})}


def _keys(content: ReportContent) -> set[str]:
    return {_key(column.label) for column in content.columns} | {key for key, _ in content.limits}


def _key(label: str) -> str:
    return label.partition("@")[0].removesuffix("/gpu")


def script_json(value: Json) -> str:
    """JSON that cannot end the script element it stands in, nor be read as markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for mark, code in (
        ("&", "\\u0026"),
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(mark, code)
    return text
