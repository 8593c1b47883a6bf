"""Every export format, by name. One more format is one file in `formats/` and one line here."""

from __future__ import annotations

from autotune.export.formats.compose import Compose
from autotune.export.formats.env_file import EnvFile
from autotune.export.formats.json_file import JsonFile
from autotune.export.formats.kserve import KServe
from autotune.export.formats.kubernetes import Kubernetes
from autotune.export.formats.llm_d import LlmD
from autotune.export.formats.production_stack import ProductionStack
from autotune.export.formats.shell import Shell
from autotune.export.formats.systemd import Systemd
from autotune.export.formats.vllm_yaml import VllmYaml
from autotune.export.operations.alerts import Alerts
from autotune.export.operations.autoscale import Autoscale
from autotune.export.operations.envoy import Envoy
from autotune.export.operations.grafana import Grafana
from autotune.export.operations.warmup import Warmup
from autotune.export.values import Exporter, OperationsExporter

_ALL: tuple[Exporter, ...] = (
    VllmYaml(), Shell(), Compose(), Kubernetes(), KServe(), LlmD(), ProductionStack(), Systemd(), EnvFile(), JsonFile(),
)  # fmt: skip
EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in _ALL}

_OPERATIONS: tuple[OperationsExporter, ...] = (Alerts(), Grafana(), Envoy(), Autoscale(), Warmup())
OPERATIONS: dict[str, OperationsExporter] = {exporter.name: exporter for exporter in _OPERATIONS}
"""What `--with operations` adds."""
