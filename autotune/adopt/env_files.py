"""Files of variables: `env_file` of compose, `--env-file` of docker, `EnvironmentFile=` of systemd.

They lie beside the launch file and hold secrets as a rule. Values are used where the launch file needs them; kept are
those of variables that vLLM and its libraries read, and never one that looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from autotune.adopt.format_facts import format_facts
from autotune.adopt.secret_names import is_secret
from autotune.adopt.values import Document, EnvSetting

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")


@dataclass
class FileVariables:
    """What files of variables give.

    Attributes:
        settings: variables of the engine; those that are none of its own, and secrets, without their value.
        values: every value but secrets, for references in the launch file.
        notes: files that were not read.
    """

    settings: list[EnvSetting] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def pairs_of(text: str) -> dict[str, str]:
    """`NAME=value` lines; quotes around a value are none of it, later lines win."""
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            name, value = match.groups()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name] = value[1:-1] if quoted else value
    return found


def read_env_files(names: Iterable[str], document: Document) -> FileVariables:
    """The variables of files that lie beside the launch file, a later file before an earlier one."""
    found = FileVariables()
    for name in names:
        text = document.beside(name.rpartition("/")[2])
        if text is None:
            found.notes.append(f"variables of the file {name} were not read: there is no such file beside this one")
            continue
        for variable, value in pairs_of(text).items():
            found.settings = [item for item in found.settings if item.name != variable]
            if is_secret(variable, value):
                found.settings.append(EnvSetting(variable, None, reference=f"secret of {name}"))
                continue
            found.values[variable] = value
            if variable.startswith(format_facts().engine_variables):
                found.settings.append(EnvSetting(variable, value))
            else:
                found.settings.append(EnvSetting(variable, None, reference=f"from {name}"))
    return found
