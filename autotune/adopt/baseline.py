"""Writes what was adopted as the baseline of a study."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from io import StringIO

from ruamel.yaml import YAML

from autotune.adopt.values import Adopted
from autotune.export.facts import gpus_of, label_of
from autotune.space.config import FrozenValue

DEFAULT_SPACE = "h100-dense"
OWN_KEY = "VLLM_API_KEY"
"""The service's key. A trial's engine never has it, so a study must not ask its owner to set it."""


@lru_cache(maxsize=1)
def machine_variables() -> frozenset[str]:
    """Variables that belong to one machine and must not follow a configuration."""
    data = tomllib.loads((files("autotune.adopt") / "formats.toml").read_text(encoding="utf-8"))
    return frozenset(data["machine"]["variables"])


def baseline_section(adopted: Adopted) -> dict[str, object]:
    """`model`, `hardware`, `engine` and `baseline` of a study file, as plain values."""
    args = {name: _shown(value) for name, value in adopted.config.args if _tunable(name, value, adopted)}
    env = {name: value for name, value in adopted.config.env if _portable(name, value)}
    section: dict[str, object] = {}
    if adopted.model:
        section["model"] = adopted.model
    section["hardware"] = {"gpus": adopted.reading.gpus or gpus_of(adopted.config)}
    variables = dict(adopted.config.env)
    references = {name: f"${{{name}}}" for name in adopted.secrets if name in variables and name != OWN_KEY}
    if references:
        section["engine"] = {"env": references}
    section["baseline"] = {"args": args, **({"env": env} if env else {})}
    return section


def baseline_text(adopted: Adopted) -> str:
    """The section as YAML with a comment that says where it comes from and what is not in it."""
    return _comment(adopted) + _dump(baseline_section(adopted))


def study_text(adopted: Adopted, name: str | None = None) -> str:
    """A whole study file around the baseline; load and limits are to be set by its owner."""
    section = baseline_section(adopted)
    study = {
        "name": name or label_of(adopted.path.stem),
        "model": section.pop("model", "MODEL"),
        **section,
        "space": DEFAULT_SPACE,
        "load": {"input_tokens": 1024, "output_tokens": 128, "arrivals": "closed", "levels": [64]},
        "objectives": [{"metric": "output_throughput"}, {"metric": "ttft", "percentile": 95}],
    }
    head = (
        "# Set load, objectives and slos to what your users do; `autotune validate` checks this file.\n"
        f"# space: {DEFAULT_SPACE} is a first choice; `autotune spaces` lists the others.\n"
    )
    return _comment(adopted) + head + _dump(study)


def _tunable(name: str, value: FrozenValue, adopted: Adopted) -> bool:
    return name not in adopted.kept and not (isinstance(value, str) and value.startswith(("$", "${")))


def _portable(name: str, value: str) -> bool:
    return name not in machine_variables() and "$" not in value


def _shown(value: FrozenValue) -> object:
    return list(value) if isinstance(value, tuple) else value


def _comment(adopted: Adopted) -> str:
    return "".join(f"# {line}\n" for line in _sentences(adopted))


def _sentences(adopted: Adopted) -> Iterable[str]:
    version = f", image of vLLM {adopted.version}" if adopted.version else ""
    where = f"{adopted.path.name} ({adopted.format}{version})"
    yield f"Read by autotune from {where}, in the words of vLLM {adopted.asked}."
    if adopted.left:
        yield f"Stays in that file and is no part of a study: {', '.join(adopted.left)}."
    if OWN_KEY in adopted.secrets:
        yield f"{OWN_KEY} was left out: every trial has a key of its own."
    left = [name for name, value in adopted.config.env if name not in adopted.secrets and not _portable(name, value)]
    if left:
        yield f"Belongs to that machine and was left out: {', '.join(left)}."
    for item in adopted.unknown:
        yield f"Changed: {item.message}. {item.hint}"
    yield from (f"Not read: {text}." for text in adopted.unread)


def _dump(mapping: dict[str, object]) -> str:
    yaml = YAML()
    yaml.width = 1000
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(mapping, stream)
    return stream.getvalue()
