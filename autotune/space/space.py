"""`SearchSpace`: what may be proposed, and how a point of it becomes an `EngineConfig`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from autotune.errors import SpecError
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.expression import Expr
from autotune.space.layout import Layout
from autotune.spec.topology import bare_name

Kind: TypeAlias = Literal["ladder", "choice", "switch", "layout"]
Point: TypeAlias = Mapping[str, FrozenValue]
"""Values by parameter name."""


@dataclass(frozen=True)
class Parameter:
    """One tunable setting.

    Attributes:
        name: vLLM's argument name, a variable's name where `env`, any name for a layout.
        kind: `ladder` (ordered numbers), `choice`, `switch` or `layout`.
        values: legal values; None leaves the argument out. Layouts are names (`tp4-dp2-ep`), mappings JSON text.
        when: only active where this holds.
        env: an environment variable.
        ordered: neighbouring values are alike.
        description: for the reader.
    """

    name: str
    kind: Kind
    values: tuple[FrozenValue, ...]
    when: Expr | None = None
    env: bool = False
    ordered: bool = False
    description: str = ""

    def snap(self, value: FrozenValue) -> FrozenValue:
        """The legal value nearest to `value` (by ratio on a ladder).

        Raises:
            LookupError: a choice, switch or layout without that value, or no number for a ladder.
        """
        for own in self.values:
            if type(own) is type(value) and own == value:
                return own
        if self.kind == "ladder" and isinstance(value, int | float) and not isinstance(value, bool):
            return min(self.values, key=lambda own: _distance(own, value))
        raise LookupError(f"{self.name}={value!r} is not one of {', '.join(map(repr, self.values))}")


@dataclass(frozen=True)
class SearchSpace:
    """A search space for one machine and model.

    Attributes:
        name: for messages.
        parameters: in the order of the file.
        requires: relations that must hold.
        derives: arguments computed from others, in order.
        fixed: arguments that every trial gets.
        facts: what is known of model and machine, for expressions.
        defaults: what vLLM uses where a ladder's argument is not given, for `point_of`.
    """

    name: str
    parameters: tuple[Parameter, ...]
    requires: tuple[Expr, ...] = ()
    derives: tuple[tuple[str, Expr], ...] = ()
    fixed: tuple[tuple[str, FrozenValue], ...] = ()
    facts: tuple[tuple[str, FrozenValue], ...] = field(default=(), repr=False)
    defaults: tuple[tuple[str, FrozenValue], ...] = field(default=(), repr=False)
    description: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits over everything that decides what a point means (not descriptions)."""
        text = json.dumps(
            [
                [[p.name, p.kind, p.values, p.when.text if p.when else None, p.env] for p in self.parameters],
                [expr.text for expr in self.requires],
                [[name, expr.text] for name, expr in self.derives],
                self.fixed,
            ],
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def size(self) -> int:
        """Number of points, conditions and relations not counted in (an upper bound)."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    def active(self, point: Point) -> frozenset[str]:
        """The parameters that count at `point`; a parameter that is switched off is null for the others."""
        return frozenset(self._settle(point)[0])

    def canonical(self, point: Point) -> dict[str, FrozenValue]:
        """`point` without the parameters that do not count, in the order of the space."""
        active = self.active(point)
        return {p.name: point[p.name] for p in self.parameters if p.name in active and p.name in point}

    def violations(self, point: Point) -> tuple[str, ...]:
        """The relations that do not hold at `point`, in words with the values; empty where it is legal."""
        scope = self._scope(point)
        return tuple(_broken(expr, scope) for expr in self.requires if expr.holds(scope) is False)

    def config(self, point: Point, base: EngineConfig) -> EngineConfig:
        """The configuration of `point` over `base`: fixed arguments, active parameters, derived arguments.

        Raises:
            SpecError: a name that the space does not have.
        """
        unknown = sorted(point.keys() - self.by_name.keys())
        if unknown:
            raise SpecError(f"the space {self.name} has no parameter {', '.join(unknown)}")
        args: dict[str, object] = dict(self.fixed)
        env: dict[str, str] = {}
        for name, value in self.canonical(point).items():
            parameter = self.by_name[name]
            if parameter.kind == "layout":
                args.update(dict.fromkeys(self._comes_with[parameter.name]) | Layout.parse(str(value)).args)
            elif parameter.env:
                env.update({} if value is None else {name: _variable(value)})
            else:
                _lay(args, name, value)
        scope = self._scope(point)
        args.update({name: scope[name] for name, _ in self.derives if scope.get(name) is not None})
        return base.merged(args, env)

    def point_of(self, config: EngineConfig) -> dict[str, FrozenValue] | None:
        """The point whose configuration is nearest to `config`, or None where some setting cannot be expressed.

        Ladders take the nearest step; an argument that is not given counts as vLLM's default where that is known.
        """
        point: dict[str, FrozenValue] = {}
        active: Iterable[str] = ()
        for _ in range(2):  # conditions may depend on settings read in the first pass
            for parameter in self.parameters:
                try:
                    point[parameter.name] = parameter.snap(self._read(parameter, config))
                except LookupError:
                    if parameter.name in active:
                        return None
            active = self.active(point)
        if any(name not in point for name in active):
            return None
        return self.canonical(point)

    def neighbours(self, point: Point, name: str) -> tuple[FrozenValue, ...]:
        """Values of `name` one step away from `point`: the next ones on a ladder, all others of a choice."""
        parameter = self.by_name[name]
        current = point.get(name)
        if not parameter.ordered:
            return tuple(value for value in parameter.values if not _equal(value, current))
        if current is None:
            return parameter.values
        at = parameter.values.index(parameter.snap(current))
        return tuple(parameter.values[i] for i in (at - 1, at + 1) if 0 <= i < len(parameter.values))

    def fixing(self, args: Mapping[str, FrozenValue]) -> SearchSpace:
        """This space without the parameters that `args` settles; expressions see the given values."""
        layout = Layout.of(EngineConfig.of(args)).facts if _LAYOUT & args.keys() else {}
        facts = tuple(sorted({**dict(self.facts), **layout}.items()))
        settled = {*args, *(p.name for p in self.parameters if p.kind == "layout" and _LAYOUT & args.keys())}
        kept = tuple(p for p in self.parameters if p.name not in settled)
        return replace(self, parameters=kept, facts=facts, fixed=tuple(sorted({**dict(self.fixed), **args}.items())))

    def _settle(self, point: Point) -> tuple[list[str], dict[str, FrozenValue]]:
        scope: dict[str, FrozenValue] = {**dict(self.facts), **dict(self.fixed)}
        active: list[str] = []
        for parameter in self.order:
            if parameter.when is not None and parameter.when.holds(scope) is not True:
                continue
            active.append(parameter.name)
            value = point.get(parameter.name)
            scope[parameter.name] = value
            if parameter.kind == "layout" and isinstance(value, str):
                own = _EXTRAS - self._comes_with[parameter.name]
                scope.update({key: fact for key, fact in Layout.parse(value).facts.items() if key not in own})
        return active, scope

    @cached_property
    def _comes_with(self) -> dict[str, frozenset[str]]:
        """By layout: arguments beside the sizes that it settles, those that one of its values sets and no parameter.

        Elsewhere they are what the baseline or a parameter of their own says.
        """
        layouts = {one.name: [Layout.parse(str(value)).args for value in one.values] for one in self.parameters
                   if one.kind == "layout"}  # fmt: skip
        return {
            name: frozenset(key for args in found for key in args if key in _EXTRAS) - self.by_name.keys()
            for name, found in layouts.items()
        }

    @cached_property
    def order(self) -> tuple[Parameter, ...]:
        """The parameters with every condition after what it reads.

        Raises:
            SpecError: conditions that go in a circle.
        """
        waiting = list(self.parameters)
        done: list[Parameter] = []
        while waiting:
            names = _provided(waiting)
            ready = [p for p in waiting if p.when is None or not (p.when.names & (names - _provided([p])))]
            if not ready:
                raise SpecError(f"the conditions of {', '.join(p.name for p in waiting)} go in a circle")
            done.extend(ready)
            waiting = [p for p in waiting if p not in ready]
        return tuple(done)

    def _scope(self, point: Point) -> dict[str, FrozenValue]:
        scope = self._settle(point)[1]
        for name, expr in self.derives:
            value = expr.evaluate(scope)
            if value is not None:
                scope[name] = value
        return scope

    def _read(self, parameter: Parameter, config: EngineConfig) -> FrozenValue:
        if parameter.kind == "layout":
            settled = self._comes_with[parameter.name]
            kept = tuple(item for item in config.args if item[0] not in _EXTRAS - settled)
            return str(Layout.of(EngineConfig(kept, config.env)))
        if parameter.env:
            text = dict(config.env).get(parameter.name)
            return next((v for v in parameter.values if (None if v is None else _variable(v)) == text), text)
        if any(isinstance(value, str) and value.startswith("{") for value in parameter.values):
            prefix = f"{parameter.name}."
            nested = {name: value for name, value in config.args if name.startswith(prefix)}
            return next((v for v in parameter.values if _expanded(parameter.name, v) == nested), "?")
        bare = bare_name(parameter.name)
        value = config.get(parameter.name, config.get(bare))
        default = dict(self.defaults).get(bare, 0 if parameter.name == "topology.prefill" else None)
        if value is None and None not in parameter.values:
            return default
        if value not in parameter.values and None in parameter.values and _equal(value, default):
            return None
        return value


_LAYOUT = frozenset({"tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "enable_expert_parallel"})
_EXTRAS = frozenset({"enable_eplb", "all2all_backend"})
"""May come with a layout, and may be parameters of their own."""


def _provided(parameters: Iterable[Parameter]) -> set[str]:
    names = {parameter.name for parameter in parameters}
    return names | set(Layout().facts) if any(p.kind == "layout" for p in parameters) else names


def _broken(expr: Expr, scope: Point) -> str:
    values = ", ".join(f"{name}={_word(scope.get(name))}" for name in sorted(expr.names))
    return f"`{expr.text}` does not hold ({values})"


def _word(value: FrozenValue) -> str:
    return "not given" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _variable(value: FrozenValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _expanded(name: str, value: FrozenValue) -> dict[str, FrozenValue]:
    args: dict[str, object] = {}
    _lay(args, name, value)
    return dict(EngineConfig.of(args).args)


def _lay(args: dict[str, object], name: str, value: FrozenValue) -> None:
    """Put one value into `args`; a mapping (JSON text) becomes dotted names."""
    args[name] = json.loads(value) if isinstance(value, str) and value.startswith("{") else value


def _equal(left: FrozenValue, right: FrozenValue) -> bool:
    return type(left) is type(right) and left == right


def _distance(own: FrozenValue, value: float) -> float:
    assert isinstance(own, int | float)
    if own > 0 and value > 0:
        return abs(math.log(own / value))
    return abs(own - value) + 1e9
