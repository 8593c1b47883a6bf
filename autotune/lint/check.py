"""Holds a launch configuration against the rules."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from autotune.adopt.values import Adopted
from autotune.errors import SpecError
from autotune.lint.facts import FACTS, facts_of
from autotune.lint.values import Finding, Severity
from autotune.report.wording import value_text
from autotune.space.arguments import ArgumentTable, check_config, shipped_table
from autotune.space.config import FrozenValue
from autotune.space.defaults import STABLE
from autotune.space.expression import Expr, parse_expression
from autotune.spec.rules import argument_rules

_SECRETS = (
    "Kubernetes docs, Good practices for Secrets: https://kubernetes.io/docs/concepts/security/secrets-good-practices/"
)
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
_BRACES = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of `rules.toml`."""

    name: str
    severity: Severity
    when: Expr
    about: str
    text: str
    hint: str
    source: str


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All rules, parsed and checked once."""
    data = tomllib.loads((files("autotune.lint") / "rules.toml").read_text(encoding="utf-8"))
    return tuple(
        Rule(name, Severity(row["level"]), parse_expression(row["when"]), row["about"], row["text"], row["hint"],
             row["source"])
        for name, row in data.items()
    )  # fmt: skip


def lint(adopted: Adopted, table: ArgumentTable | None = None) -> tuple[Finding, ...]:
    """Every finding, worst first, then by line; `table` is the one that the file was read with, if not the shipped."""
    known = table or shipped_table(adopted.asked)
    facts = facts_of(adopted)
    found = [
        *_unknown(adopted),
        *_deprecated(adopted, known),
        *_exposed(adopted),
        *(finding for rule in rules() if (finding := _apply(rule, facts, adopted)) is not None),
        *_unread(adopted),
        *_defaults(adopted, known),
    ]
    return tuple(sorted(found, key=lambda finding: (_ORDER[finding.severity], finding.line or 0)))


def known_names(table: ArgumentTable) -> frozenset[str]:
    """Every name that a rule may read, variables aside."""
    return table.names | frozenset(FACTS)


def _apply(rule: Rule, facts: Mapping[str, FrozenValue], adopted: Adopted) -> Finding | None:
    try:
        if rule.when.holds(facts) is not True:
            return None
    except SpecError:  # a value of another type than vLLM takes: that is a finding of its own
        return None
    texts = [_BRACES.sub(lambda match: value_text(facts.get(match.group(1))), text) for text in (rule.text, rule.hint)]
    return Finding(rule.name, rule.severity, texts[0], texts[1], rule.source, rule.about, _line(rule.about, adopted))


def _line(about: str, adopted: Adopted) -> int | None:
    if about.startswith("env."):
        setting = next((item for item in adopted.reading.env if item.name == about[4:]), None)
        return adopted.line_of(setting.span[0]) if setting is not None and setting.span else None
    return adopted.line_of_argument(about) if about else None


def _unknown(adopted: Adopted) -> Iterable[Finding]:
    source = f"vLLM {adopted.asked}, arguments and environment variables"
    for item in adopted.unknown:
        severity = Severity.ERROR if item.fatal else Severity.WARNING
        rule = "unknown_argument" if item.fatal else "unknown_variable"
        yield Finding(rule, severity, item.message, item.hint, source, item.name, _line_of_text(item.name, adopted))


def _plain(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _line_of_text(name: str, adopted: Adopted) -> int | None:
    """Where the name stands as a word of its own."""
    match = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", adopted.text)
    return adopted.line_of(match.start()) if match else None


def _deprecated(adopted: Adopted, table: ArgumentTable) -> Iterable[Finding]:
    for problem in check_config(adopted.config, table):
        if not problem.fatal and problem.name in dict(adopted.config.args):
            yield Finding("deprecated_argument", Severity.WARNING, f"{problem.name}: {problem.message}", problem.hint,
                          f"vLLM {table.version}, arguments", problem.name, _line(problem.name, adopted))  # fmt: skip


def _exposed(adopted: Adopted) -> Iterable[Finding]:
    for name in adopted.exposed:
        yield Finding("secret_in_plain_text", Severity.ERROR, f"{name} stands in the file in plain text",
                      "Move it to a secret or to the environment, and replace the key: it has been seen.",
                      _SECRETS, name, _line(f"env.{name}", adopted) or _line_of_text(name, adopted))  # fmt: skip


def _unread(adopted: Adopted) -> Iterable[Finding]:
    for text in adopted.unread:
        yield Finding("not_read", Severity.INFO, f"not checked: {text}", "", "this file")


def _defaults(adopted: Adopted, table: ArgumentTable) -> Iterable[Finding]:
    """Arguments that say what vLLM does anyway; harmless, but they hide what matters and outlive a better default."""
    reserved = argument_rules().reserved
    lost = {_plain(item.name) for item in adopted.unknown}
    renamed = {name for place in adopted.places if _plain(place.written) in lost for name in place.names}
    for name, value in adopted.config.args:
        if name in renamed:  # said already
            continue
        argument = table.by_name.get(name)
        default = STABLE.get(name, argument.default if argument is not None else None)
        if default is not None and value == default and type(value) is type(default) and name not in reserved:
            yield Finding("equals_default", Severity.INFO, f"{name}={value_text(value)} is vLLM's default",
                          "It can go; keep it only to pin the value against a change of the default.",
                          f"vLLM {table.version}, arguments", name, _line(name, adopted))  # fmt: skip
