"""Changes only the tuned arguments inside a file that people already keep; the rest stays byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autotune.adopt.registry import adopt_text
from autotune.adopt.values import Adopted
from autotune.export.edits import Edit, apply
from autotune.export.placing import Placing
from autotune.report.wording import value_text
from autotune.space.arguments import ArgumentTable
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import STABLE
from autotune.spec.rules import argument_rules


@dataclass(frozen=True, slots=True)
class Patch:
    """A changed file.

    Attributes:
        text: its new content.
        changes: what was changed, one sentence each.
        by_hand: what could not be written into this file, one sentence each.
        unmeasured: arguments that stay in the file and were in no measurement of the study, as `name=value`.
    """

    text: str
    changes: tuple[str, ...]
    by_hand: tuple[str, ...]
    unmeasured: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Change:
    """One top-level argument: the names below it that change, with their new values (None: take it out)."""

    head: str
    values: Mapping[str, FrozenValue]
    whole: Mapping[str, FrozenValue]
    """Everything that the argument says afterwards."""


def patch(
    adopted: Adopted, target: EngineConfig, baseline: EngineConfig, table: ArgumentTable,
    given: Mapping[str, str] | None = None,
) -> Patch:  # fmt: skip
    """The adopted file with `target`'s arguments.

    Arguments that neither `target` nor `baseline` names stay. What is in `baseline` and not in `target` is taken out.
    The result is read back; what does not read back as wanted is left as it was and named.

    Args:
        adopted: the file.
        target: what should run.
        baseline: what the study started from.
        table: arguments of the vLLM that reads the file.
        given: variables that were given when the file was adopted.
    """
    placing = Placing(adopted, table)
    changes = _changes(adopted, target, baseline)
    edits: dict[str, tuple[Edit, ...]] = {}
    by_hand: list[str] = []
    for change in changes:
        made = placing.edits(change.head, change.values, change.whole)
        if made is None:
            by_hand.append(_by_hand(change))
        else:
            edits[change.head] = made
    for name, value in target.env:
        made = placing.env_edits(name, value) if _env_differs(adopted, name, value) else ()
        if made is None:
            by_hand.append(f"set the variable {name}={value}; this file has no place for it")
        elif made:
            edits[f"${name}"] = made
    text, wrong = _proven(adopted, changes, edits, target, table, given or {})
    by_hand += [_by_hand(change) for change in changes if change.head in wrong]
    done = [sentence for change in changes if change.head in edits and change.head not in wrong
            for sentence in _told(change, adopted)]  # fmt: skip
    done += [f"{name[1:]}={dict(target.env)[name[1:]]}" for name in edits if name.startswith("$") and name not in wrong]
    return Patch(text, tuple(done), tuple(by_hand), tuple(_unmeasured(adopted, target, baseline)))


def _unmeasured(adopted: Adopted, target: EngineConfig, baseline: EngineConfig) -> Iterable[str]:
    known = {name for name, _ in (*target.args, *baseline.args)} | set(argument_rules().reserved)
    for name, value in adopted.config.args:
        reference = isinstance(value, str) and value.startswith("$")
        if name not in known and not reference and STABLE.get(name) != value:
            yield f"{name}={value_text(value)}"


def _changes(adopted: Adopted, target: EngineConfig, baseline: EngineConfig) -> list[_Change]:
    today = dict(adopted.config.args)
    wanted: dict[str, FrozenValue] = dict(target.args)
    for name, _ in baseline.args:
        if name not in wanted and name in today and STABLE.get(name) != today[name]:
            wanted[name] = None
    reserved = argument_rules().reserved
    differing = {name: value for name, value in wanted.items() if today.get(name) != value and name not in reserved}
    differing = {name: value for name, value in differing.items() if name in today or STABLE.get(name) != value}
    heads: dict[str, dict[str, FrozenValue]] = {}
    for name, value in differing.items():
        heads.setdefault(name.partition(".")[0], {})[name] = value
    return [_Change(head, values, _whole(head, values, today)) for head, values in sorted(heads.items())]


def _whole(head: str, values: Mapping[str, FrozenValue], today: Mapping[str, FrozenValue]) -> dict[str, FrozenValue]:
    before = {name: value for name, value in today.items() if name.partition(".")[0] == head}
    return {name: value for name, value in {**before, **values}.items() if value is not None}


def _env_differs(adopted: Adopted, name: str, value: str) -> bool:
    return dict(adopted.config.env).get(name) != value and not value.startswith("${")


def _proven(
    adopted: Adopted, changes: Iterable[_Change], edits: dict[str, tuple[Edit, ...]], target: EngineConfig,
    table: ArgumentTable, given: Mapping[str, str],
) -> tuple[str, set[str]]:  # fmt: skip
    """The text with every edit that reads back as wanted, and what does not."""
    wrong: set[str] = set()
    while True:
        kept = [_ended(edit, adopted.text) for name, group in edits.items() if name not in wrong for edit in group]
        try:
            text = apply(adopted.text, kept)
        except ValueError:
            wrong.add(next(name for name in sorted(edits) if name not in wrong))
            continue
        found = _misread(text, adopted, changes, edits, target, table, given) - wrong
        if not found or not kept:
            return text, wrong
        wrong |= found


def _ended(edit: Edit, text: str) -> Edit:
    """New lines end as the file's own lines do."""
    if "\r\n" not in text or "\n" not in edit.text:
        return edit
    return replace(edit, text=edit.text.replace("\r\n", "\n").replace("\n", "\r\n"))


def _misread(
    text: str, adopted: Adopted, changes: Iterable[_Change], edits: Mapping[str, object], target: EngineConfig,
    table: ArgumentTable, given: Mapping[str, str],
) -> set[str]:  # fmt: skip
    """Names of edits whose arguments do not read back; all of them where the file reads no more."""
    try:
        after = adopt_text(
            text, adopted.path, table=table, format=adopted.format, engine=adopted.reading.label or None, given=given
        ).config
    except Exception as error:
        if not edits:
            raise error
        return set(edits)
    args, env = dict(after.args), dict(after.env)
    wrong = {c.head for c in changes if c.head in edits and any(args.get(n) != v for n, v in c.values.items())}
    wrong |= {name for name in edits if name.startswith("$") and env.get(name[1:]) != dict(target.env)[name[1:]]}
    touched = {c.head for c in changes}
    others = {n for n, v in adopted.config.args if n.partition(".")[0] not in touched and args.get(n) != v}
    return set(edits) if others and not wrong else wrong


def _told(change: _Change, adopted: Adopted) -> list[str]:
    today = dict(adopted.config.args)
    line = adopted.line_of_argument(change.head)
    where = f" (line {line})" if line else ""
    return [
        f"{name}: {value_text(today.get(name))} → {value_text(value)}{where}" for name, value in change.values.items()
    ]


def _by_hand(change: _Change) -> str:
    settings = ", ".join(f"{name}={value_text(value)}" for name, value in change.values.items())
    return f"set {settings} by hand; this file has no place where it could be written safely"
