"""What must hold between the keys of a study. Pure: takes typed values, gives back problems."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.spec.rules import argument_rules
from autotune.spec.units import duration_text

if TYPE_CHECKING:
    from autotune.spec.study import (
        ConfirmSpec,
        EngineSpec,
        HardwareSpec,
        LengthSpec,
        LoadSpec,
        ObjectiveSpec,
        ParameterSpec,
        Part,
        QualitySpec,
        SpaceSpec,
        StudySpec,
        WindowSpec,
    )

LADDER_LIMIT = 16
"""Steps. Longer ladders cost the search time and gain nothing."""
LATENCIES = frozenset({"ttft", "tpot", "itl", "e2e"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where (relative to the part that was checked), what is wrong, and what to do."""

    path: tuple[str | int, ...]
    message: str
    hint: str = ""


class StudyProblems(ValueError):
    """Problems of a part of a study; pydantic carries them to whoever reads its errors."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{'.'.join(map(str, item.path))}: {item.message}" for item in problems))


def requests_needed(percentile: float) -> int:
    """Finished requests that a percentile needs as an objective or SLO: three beyond it, ten from p99 on.

    90 needs 30, 95 needs 60, 99 needs 1,000. The load room measures by the same rule.
    """
    beyond = 10.0 if percentile >= 99 else 3.0
    return math.ceil(beyond / (1.0 - percentile / 100.0) - 1e-9)


def engine_problems(engine: EngineSpec) -> Iterator[Problem]:
    for name in ("url", "api_key_env"):
        if getattr(engine, name) is not None and engine.kind != "endpoint":
            yield Problem((name,), f"is only for `kind: endpoint`, not {engine.kind!r}", "remove it or change the kind")
    for name, kind in (("command", "command"), ("simulate", "simulated")):
        if getattr(engine, name) is not None and engine.kind != kind:
            yield Problem((name,), f"is only for `kind: {kind}`, not {engine.kind!r}", "remove it or change the kind")
    if engine.kind == "endpoint":
        yield from _endpoint_problems(engine)
    if engine.kind == "command" and engine.command is None:
        yield Problem(
            ("command",),
            "is missing",
            "`kind: command` needs `command: {start: [...]}` with the command that starts it",
        )
    if engine.python is not None and engine.kind in ("endpoint", "simulated"):
        yield Problem(("python",), f"has no meaning for `kind: {engine.kind}`", "remove it")
    yield from reserved_problems(engine.args, ("args",))


def _endpoint_problems(engine: EngineSpec) -> Iterator[Problem]:
    if engine.url is None:
        yield Problem(
            ("url",), "is missing", "`kind: endpoint` needs the server's base URL, such as http://127.0.0.1:8000"
        )
    elif not re.match(r"https?://[^/\s]+", engine.url):
        yield Problem(("url",), f"{engine.url!r} is no URL", "write it like http://127.0.0.1:8000")
    if engine.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", engine.api_key_env):
        yield Problem(
            ("api_key_env",),
            "is no name of a variable",
            "name the environment variable that holds the key, not the key",
        )
    if engine.args:
        yield Problem(("args",), "cannot be applied to a server that runs already", "remove them")


def reserved_problems(args: Iterable[str], path: tuple[str, ...]) -> Iterator[Problem]:
    """Arguments that belong to the trial itself."""
    for name in args:
        bare = name.lstrip("-").replace("-", "_").removeprefix("prefill.").removeprefix("decode.")
        reason = argument_rules().reserved.get(bare)
        if reason is not None:
            yield Problem((*path, name), f"cannot be set: {reason}", "remove it")


def command_problems(start: Sequence[str]) -> Iterator[Problem]:
    if not start:
        yield Problem(("start",), "is empty", 'such as ["docker", "run", ..., "{args}"]')
    elif "{args}" not in start:
        yield Problem(
            ("start",),
            "has no entry `{args}`",
            "put `{args}` where vLLM's arguments belong; without it nothing is tuned",
        )


def hardware_problems(hardware: HardwareSpec) -> Iterator[Problem]:
    devices, gpus = hardware.devices, hardware.gpus
    if devices is not None:
        if len(set(devices)) != len(devices):
            yield Problem(("devices",), "names a GPU twice", "name each index once")
        if any(index < 0 for index in devices):
            yield Problem(("devices",), "holds a negative index", "indices start at 0, as nvidia-smi shows them")
        if gpus is not None and gpus > len(devices):
            yield Problem(("gpus",), f"is {gpus}, but `devices` names {len(devices)}", "make them agree, or remove one")
    if gpus is not None and hardware.parallel_trials > max(gpus, 1):
        yield Problem(
            ("parallel_trials",),
            f"is {hardware.parallel_trials}, but there are {gpus} GPUs",
            "trials that run at the same time need a GPU each",
        )
    elif gpus is not None and hardware.trial_gpus is None and gpus % hardware.parallel_trials:
        yield Problem(
            ("parallel_trials",),
            f"is {hardware.parallel_trials}, and {gpus} GPUs cannot be divided evenly by it",
            f"such as {_divisor_below(gpus, hardware.parallel_trials)}, or say in `trial_gpus` how many one trial has",
        )
    if hardware.trial_gpus is not None and (gpus is None or hardware.trial_gpus > gpus):
        yield Problem(
            ("trial_gpus",),
            f"is {hardware.trial_gpus}, " + ("and `gpus` is missing" if gpus is None else f"but there are {gpus} GPUs"),
            "say in `gpus` how many all trials have together, at least as many",
        )


def _divisor_below(number: int, limit: int) -> int:
    return next(one for one in range(limit, 0, -1) if number % one == 0)


def length_problems(length: LengthSpec) -> Iterator[Problem]:
    if length.high is not None and length.high < length.low:
        yield Problem(("high",), f"is {length.high}, below `low` ({length.low})", "exchange the two")
    if length.kind == "empirical" and length.file is None:
        yield Problem(("file",), "is missing", "`kind: empirical` needs a file with one length a line or a histogram")
    if length.kind != "empirical" and length.file is not None:
        yield Problem(("file",), f"is only for `kind: empirical`, not {length.kind!r}", "remove it or change the kind")
    if length.kind == "uniform" and length.high is None:
        yield Problem(("high",), "is missing", "`kind: uniform` needs `low` and `high`")
    if length.kind == "fixed" and length.stdev > 0:
        yield Problem(("stdev",), "has no meaning for `kind: fixed`", "use `kind: normal` or `lognormal`, or remove it")
    if length.kind in ("fixed", "normal", "lognormal"):
        high = math.inf if length.high is None else length.high
        if not length.low <= length.mean <= high:
            yield Problem(("mean",), f"is {length.mean:g}, outside `low` to `high`", "put it between the two")
    if length.kind == "fixed" and length.mean != int(length.mean):
        yield Problem(("mean",), f"is {length.mean:g}; a fixed length is a whole number", "round it")


def window_problems(window: WindowSpec) -> Iterator[Problem]:
    if window.duration is None and window.requests is None:
        yield Problem((), "needs `duration` or `requests`", "such as `window: {duration: 20s}`")
    if window.duration is not None and window.duration > window.max_duration:
        yield Problem(
            ("duration",),
            f"is {window.duration:g} s, above `max_duration` ({window.max_duration:g} s)",
            "raise `max_duration` or shorten it",
        )


def load_problems(load: LoadSpec) -> Iterator[Problem]:
    yield from _level_problems(load)
    yield from _trace_problems(load)
    if load.images is not None and load.api != "chat":
        yield Problem(("images",), f"cannot be sent with `api: {load.api}`", "write `api: chat`")
    if load.images is not None and load.turns > 1:
        yield Problem(("images",), "cannot be sent in conversations", "remove `turns` or `images`")
    if load.arrivals != "gamma" and load.burstiness != _default(load, "burstiness"):
        yield Problem(("burstiness",), f"is only for `arrivals: gamma`, not {load.arrivals!r}", "change `arrivals`")
    for name, kind in (("burst", "bursts"), ("ramp", "ramps")):
        if load.arrivals != kind and getattr(load, name) != _default(load, name):
            yield Problem((name,), f"is only for `arrivals: {kind}`, not {load.arrivals!r}", "change `arrivals`")
    periods = (load.window.duration or 0.0) / load.ramp.period
    if load.arrivals == "ramps" and (periods < 1 - 1e-9 or abs(periods - round(periods)) > 1e-9):
        hint = f"set `window.duration` to a multiple of {load.ramp.period:g} s"
        yield Problem(("window", "duration"), "does not hold whole periods of `ramp`", hint)
    shortest = _fixed_length(load.input_tokens)
    if load.prefix is not None and shortest is not None and load.prefix.tokens >= shortest:
        yield Problem(
            ("prefix", "tokens"),
            f"is {load.prefix.tokens}, but a prompt has only {shortest} tokens",
            "the prefix is counted in the prompt's length; make it shorter",
        )


def _level_problems(load: LoadSpec) -> Iterator[Problem]:
    if load.knee is not None and load.levels != _default(load, "levels"):
        yield Problem(("levels",), "cannot stand beside `knee`, which places the load itself", "remove one of the two")
    if len(set(load.levels)) != len(load.levels):
        yield Problem(("levels",), "names a level twice", "name each level once")
    elif sorted(load.levels) != load.levels:
        order = ", ".join(f"{level:g}" for level in sorted(load.levels))
        yield Problem(("levels",), "must rise", f"write [{order}]")
    if load.arrivals == "closed":
        for index, level in enumerate(load.levels):
            if level != int(level):
                yield Problem(("levels", index), f"is {level:g}; a concurrency is a whole number", "round it")


def _default(part: Part, name: str) -> object:
    return type(part).model_fields[name].get_default(call_default_factory=True)


def _trace_problems(load: LoadSpec) -> Iterator[Problem]:
    if load.arrivals == "trace" and load.trace is None:
        yield Problem(("trace",), "is missing", "`arrivals: trace` needs `trace: {file: ...}`")
    if load.arrivals != "trace" and load.trace is not None:
        yield Problem(("trace",), f"is only for `arrivals: trace`, not {load.arrivals!r}", "set `arrivals: trace`")
    if load.arrivals == "trace" and load.knee is not None:
        yield Problem(("knee",), "cannot place a recorded trace", "use `trace.speed` to change its rate")


def _fixed_length(length: int | LengthSpec) -> int | None:
    if isinstance(length, int):
        return length
    return int(length.mean) if length.kind == "fixed" else None


def objective_problems(objective: ObjectiveSpec) -> Iterator[Problem]:
    latency = objective.metric in LATENCIES
    if objective.percentile is not None and not latency:
        yield Problem(("percentile",), f"has no meaning for {objective.metric}", "remove it")
    if objective.per_gpu and latency:
        yield Problem(("per_gpu",), f"has no meaning for {objective.metric}", "remove it")
    wanted = "minimize" if latency else "maximize"
    if objective.direction not in (None, wanted):
        yield Problem(
            ("direction",),
            f"{objective.direction!r} would look for the worst {objective.metric}",
            f"write {wanted}, or leave it out",
        )
    if objective.metric == "capacity" and objective.level != _default(objective, "level"):
        yield Problem(("level",), "has no meaning for capacity, which looks at all levels", "remove it")


def quality_problems(quality: QualitySpec) -> Iterator[Problem]:
    for name in ("tasks", "command", "reference"):
        if getattr(quality, name) and not quality.enabled:
            yield Problem((name,), "is given, but the gate is off", "set `quality.enabled: true`, or remove it")


def confirm_problems(confirm: ConfirmSpec) -> Iterator[Problem]:
    if confirm.rounds == 1:
        yield Problem(
            ("rounds",), "is 1, and one round gives no interval", "use at least 2 (3 is better), or 0 for none"
        )


def parameter_problems(parameter: ParameterSpec) -> Iterator[Problem]:
    kinds = [name for name in ("ladder", "choice", "switch", "layout") if getattr(parameter, name) is not None]
    if len(kinds) != 1:
        given = " and ".join(f"`{name}`" for name in kinds) or "none"
        yield Problem((), f"needs exactly one of ladder, choice, switch and layout, but has {given}", "keep one kind")
    if parameter.switch is False:
        yield Problem(("switch",), "is false", "write `switch: true`; the search tries both on and off")
    ladder, choice = parameter.ladder, parameter.choice
    if ladder is not None:
        if not 2 <= len(ladder) <= LADDER_LIMIT:
            yield Problem(("ladder",), f"has {len(ladder)} steps", f"2 to {LADDER_LIMIT} are legal")
        if sorted(set(ladder)) != ladder:
            yield Problem(("ladder",), "must rise, without repeats", "sort it")
    if choice is not None and (not choice or len({repr(value) for value in choice}) != len(choice)):
        yield Problem(("choice",), "is empty or repeats a value", "list each value once")


def space_problems(space: SpaceSpec) -> Iterator[Problem]:
    if not space.parameters:
        yield Problem(("parameters",), "is empty", "without a setting to change there is nothing to tune")
    for part in ("fixed", "derive"):
        for name in getattr(space, part):
            if name in space.parameters:
                yield Problem((part, name), "is a parameter too", "keep it in one of the two places")
    yield from reserved_problems(space.parameters, ("parameters",))
    yield from reserved_problems(space.fixed, ("fixed",))


def study_problems(study: StudySpec) -> Iterator[Problem]:
    yield from _objectives_in_study(study)
    yield from _enough_requests(study)
    yield from _arguments_in_study(study)
    yield from _storage_in_study(study.storage)
    twice = [pair for pair, count in Counter((slo.metric, slo.percentile) for slo in study.slos).items() if count > 1]
    for metric, percentile in twice:
        yield Problem(("slos",), f"limits {metric} p{percentile:g} twice", "keep the stricter one")
    longest = study.load.request_timeout
    for index, slo in enumerate(study.slos):
        if slo.limit > longest:
            text = f"{duration_text(slo.limit)} can never be missed: a request ends after {duration_text(longest)}"
            hint = "a number without a unit is seconds; write 500ms, or raise `load.request_timeout` above it"
            yield Problem(("slos", index, "limit"), text, hint)
    if not isinstance(study.space, str):
        for name in sorted(study.engine.args.keys() & study.space.parameters.keys()):
            yield Problem(("engine", "args", name), "is tuned by the space", "remove it here or in `space.parameters`")


def _storage_in_study(storage: str | None) -> Iterator[Problem]:
    kind, mark, place = (storage or "").partition("://")
    if not mark:
        return
    if kind.partition("+")[0] not in ("sqlite", "postgresql"):
        legal = "a folder, sqlite:///results.db or postgresql://user@host/name"
        yield Problem(("storage",), f"{kind} is no database that a study can be kept in", f"legal: {legal}")
    elif kind.startswith("sqlite") and (kind != "sqlite" or not re.fullmatch(r"/[^?:]*[^?:/]", place)):
        yield Problem(
            ("storage",),
            "names no file",
            "sqlite:///results.db stands beside the study file, sqlite:////data/results.db is an absolute path",
        )


def _objectives_in_study(study: StudySpec) -> Iterator[Problem]:
    seen: set[tuple[object, ...]] = set()
    for index, objective in enumerate(study.objectives):
        at = ("objectives", index)
        key = (objective.metric, objective.percentile, objective.level, objective.per_gpu)
        if key in seen:
            yield Problem(at, "stands there twice", "remove one")
        seen.add(key)
        if objective.metric in ("goodput", "capacity") and not study.slos:
            yield Problem((*at, "metric"), f"{objective.metric} needs SLOs", "add `slos:`, such as ttft p95 500ms")
        if isinstance(objective.level, float):
            yield from _level_of(study, objective.level, at)
        if objective.level == "area" and (study.load.knee is not None or len(set(study.load.levels)) < 2):
            yield Problem((*at, "level"), "area needs two load levels at least", "list them in `load.levels`")
        if objective.metric == "tokens_per_joule" and (study.hardware.gpus == 0 or study.engine.python == "cpu"):
            yield Problem((*at, "metric"), "tokens_per_joule needs a GPU's power meter", "choose another metric")


def _level_of(study: StudySpec, level: float, at: tuple[str | int, ...]) -> Iterator[Problem]:
    levels = ", ".join(f"{value:g}" for value in study.load.levels)
    if study.load.knee is not None:
        yield Problem((*at, "level"), "cannot be a number with `load.knee`", "use first, last or best")
    elif level not in study.load.levels:
        hint = f"`load.levels` has {levels}; or first, last, best, area"
        yield Problem((*at, "level"), f"{level:g} is not measured", hint)


def _enough_requests(study: StudySpec) -> Iterator[Problem]:
    """A far percentile of few requests is noise: from p99 on the window itself must promise enough of them."""
    asked: list[tuple[tuple[str | int, ...], float]] = [
        (("objectives", index, "percentile"), float(item.percentile or 95))
        for index, item in enumerate(study.objectives)
        if item.metric in LATENCIES
    ]
    asked += [(("slos", index, "percentile"), float(item.percentile)) for index, item in enumerate(study.slos)]
    window = study.load.window
    for at, percentile in asked:
        needed = requests_needed(percentile)
        promised = percentile >= 99 or window.duration is None
        if promised and (window.requests or 0) < needed:
            yield Problem(
                at,
                f"p{percentile:g} needs at least {needed} requests in the window",
                f"set `load.window.requests: {needed}` or more, or use a lower percentile",
            )


def _arguments_in_study(study: StudySpec) -> Iterator[Problem]:
    rules = argument_rules()
    for part in ("engine", "baseline"):
        args = {name.replace("-", "_"): (name, value) for name, value in getattr(study, part).args.items()}
        name, value = args.get(rules.weights_argument, ("", None))
        if study.quality.enabled and value == rules.dummy_weights:
            yield Problem(
                (part, "args", name),
                "dummy weights have no quality to keep, but the quality gate is on",
                "set `quality.enabled: false`, or load real weights",
            )
        name, value = args.get(rules.context_argument, ("", None))
        prompt, answer = _fixed_length(study.load.input_tokens), _fixed_length(study.load.output_tokens)
        if isinstance(value, int) and prompt is not None and answer is not None and prompt + answer > value:
            yield Problem(
                (part, "args", name),
                f"is {value}, but prompt and answer have {prompt} + {answer} tokens",
                "raise it, or shorten `load.input_tokens` or `load.output_tokens`",
            )
