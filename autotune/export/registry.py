"""Every export format, by name. One more format is one file in `formats/` and one line here."""

from __future__ import annotations

from autotune.export.formats.json_file import JsonFile
from autotune.export.formats.shell import Shell
from autotune.export.formats.vllm_yaml import VllmYaml
from autotune.export.values import Exporter

_ALL: tuple[Exporter, ...] = (VllmYaml(), Shell(), JsonFile())
EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in _ALL}
