"""What the engine says it runs with, against what was asked. Pure.

A setting that was asked for and is not what runs makes the trial invalid. What the engine chose where nothing was
asked is a remark: the default of this engine on this card is what it is.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from autotune.engine.client import Json
from autotune.engine.notices import Notice, NoticeKind
from autotune.engine.protocol import Resolved
from autotune.engine.startlog import StartLog
from autotune.space.config import EngineConfig, FrozenValue

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_DTYPES = {"half": "float16", "float": "float32"}
_KV = {"fp8": "fp8_e4m3"}
_GRAPH_MODES = {
    "0": "none",
    "1": "piecewise",
    "2": "full",
    "[2, 0]": "full_decode_only",
    "(2, 0)": "full_decode_only",
    "[2, 1]": "full_and_piecewise",
    "(2, 1)": "full_and_piecewise",
}
_OURS = ("env.VLLM_RPC_BASE_PATH", "env.VLLM_SERVER_DEV_MODE")
"""Variables that the engine room sets by itself; an engine that does not know them loses nothing."""
_EAGER = ("enforce_eager", "compilation_config", "cudagraph", "max_cudagraph", "optimization_level")


@dataclass(frozen=True, slots=True)
class Rule:
    """Where one argument stands, and how it is compared."""

    name: str
    info: tuple[str, ...]
    log: str
    compare: str


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, from the data file."""
    text = resources.files("autotune.engine").joinpath("resolved.toml").read_text(encoding="utf-8")
    return tuple(
        Rule(name, tuple(entry.get("info", ())), entry.get("log", ""), entry.get("compare", "equal"))
        for name, entry in tomllib.loads(text)["argument"].items()
    )


def resolve(config: EngineConfig, log: StartLog, info: Json, version: str) -> Resolved:
    """Compare.

    Args:
        config: what was asked.
        log: what the engine said while it started.
        info: its answer to /server_info; empty where it has none.
        version: its answer to /version.
    """
    sections = _sections(info)
    said = {rule.name: value for rule in rules() if (value := _said(rule, sections, log)) is not None}
    mismatches: list[str] = []
    notes: list[str] = []
    for rule in rules():
        asked, got = config.get(rule.name), said.get(rule.name)
        if asked is None or got is None or _same(rule.compare, asked, got):
            continue
        sentence = f"{rule.name}: asked for {_show(asked)}, the engine runs with {_show(got)}"
        (notes if rule.compare == "note" else mismatches).append(sentence)
    for notice in log.notices:
        if (judged := _judge(notice, config)) is not None:
            mismatches.append(judged)
        elif notice.kind is not NoticeKind.NOISE and notice.parameter not in _OURS:
            notes.append(notice.text)
    return Resolved(
        values=tuple(sorted(said.items())),
        mismatches=tuple(dict.fromkeys(mismatches)),
        notes=tuple(dict.fromkeys(notes)),
        kv_cache_tokens=log.facts.kv_cache_tokens or _kv_tokens(sections),
        version=version or log.facts.vllm_version,
    )


def _judge(notice: Notice, config: EngineConfig) -> str | None:
    """The sentence that makes a trial invalid, None where the notice is about nothing that was asked for."""
    if notice.kind not in (NoticeKind.IGNORED, NoticeKind.FALLBACK):
        return None
    name = notice.parameter.replace("-", "_")
    asked = {argument for argument, _ in config.args} | {f"env.{variable}" for variable, _ in config.env}
    if notice.notice_id == "eager_forced":
        # Whoever asked for nothing gets the platform's default; whoever tuned graphs does not get them.
        graphs = any(argument.startswith(_EAGER) for argument in asked) and config.get("enforce_eager") is not True
        return f"eager mode instead of CUDA graphs: {notice.text}" if graphs else None
    relevant = name and any(argument == name or argument.startswith(f"{name}.") for argument in asked)
    if not relevant:
        return None
    if notice.kind is NoticeKind.FALLBACK and config.get(name) is False:
        return None  # switched off, as asked
    word = "ignored" if notice.kind is NoticeKind.IGNORED else "not honoured"
    return f"{name} is {word}: {notice.text}"


def _sections(info: Json) -> Mapping[str, object]:
    """The engine's configuration; a text form holds JSON with our simulator, and nothing to compare with vLLM."""
    value = info.get("vllm_config")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _said(rule: Rule, sections: Mapping[str, object], log: StartLog) -> FrozenValue:
    for path in rule.info:
        value = _at(sections, path)
        if value is not None:
            return value
    if rule.name == "max_num_batched_tokens" and log.facts.max_num_batched_tokens is not None:
        return log.facts.max_num_batched_tokens
    if rule.name == "async_scheduling" and log.facts.async_scheduling is not None:
        return log.facts.async_scheduling
    word = log.facts.resolved_value(rule.log) if rule.log else None
    return None if word == "None" else word


def _at(sections: Mapping[str, object], path: str) -> FrozenValue:
    value: object = sections
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    if isinstance(value, list):
        return tuple(item if isinstance(item, bool | int | float | str) else str(item) for item in value)
    return value if isinstance(value, bool | int | float | str) else None


def _same(compare: str, asked: FrozenValue, got: FrozenValue) -> bool:
    if str(asked).lower() == "auto":
        return True
    if isinstance(asked, tuple) or isinstance(got, tuple):
        if compare == "graph_mode":
            return _word(compare, asked) == _word(compare, got)
        return _numbers(asked) == _numbers(got)
    one, other = _number(asked), _number(got)
    if one is not None and other is not None:
        # A size of -1 or 0 lets the engine choose.
        return abs(one - other) <= 1e-9 * max(abs(one), abs(other)) or (compare == "size" and one <= 0)
    return _word(compare, asked) == _word(compare, got)


def _numbers(value: FrozenValue) -> tuple[str, ...]:
    return tuple(sorted(str(item) for item in (value if isinstance(value, tuple) else (value,))))


def _number(value: FrozenValue) -> float | None:
    """A number or a size; switches are numbers too, as the log writes them as words."""
    text = str(value)
    if text in ("True", "true"):
        return 1.0
    if text in ("False", "false"):
        return 0.0
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", text):
        return float(found[1]) * _UNITS[found[2]]
    try:
        return float(text)
    except ValueError:
        return None


def _word(compare: str, value: FrozenValue) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    text = text.lower().removeprefix("torch.").rpartition("mode.")[2]
    table = {"dtype": _DTYPES, "kv_dtype": _KV, "graph_mode": _GRAPH_MODES}.get(compare, {})
    return table.get(text, text)


def _kv_tokens(sections: Mapping[str, object]) -> int:
    blocks, size = _at(sections, "cache_config.num_gpu_blocks"), _at(sections, "cache_config.block_size")
    return blocks * size if isinstance(blocks, int) and isinstance(size, int) else 0


def _show(value: FrozenValue) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
