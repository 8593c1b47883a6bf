"""The container that every Kubernetes format is made of, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.export.facts import deployment_facts, gpus_of
from autotune.export.secrets import variables
from autotune.export.values import ExportInput
from autotune.space.argv import to_argv
from autotune.space.config import EngineConfig

Manifest = Mapping[str, object]
PROBE_PERIOD_S = 10
"""Seconds between two probes."""
_PATIENCE = 3.0
"""A start may take this many times the longest measured one: a cold cache, a slow disk."""
_UNKNOWN_START_S = 600.0


def image_of(recommendation: ExportInput) -> str:
    """vLLM's own image of the version that the files are written for."""
    return f"vllm/vllm-openai:v{version_of(recommendation)}"


def version_of(recommendation: ExportInput) -> str:
    """The vLLM that the files are written for."""
    return recommendation.evidence.vllm_version or recommendation.table.version


def start_limit_s(recommendation: ExportInput) -> int:
    """Longest time until the server must answer, in seconds: three times the longest start that was measured."""
    if recommendation.evidence.simulated or recommendation.ready_s <= 0:
        return int(_UNKNOWN_START_S)
    return max(int(math.ceil(recommendation.ready_s * _PATIENCE / 60) * 60), 120)


def serve_args(recommendation: ExportInput, without: frozenset[str] = frozenset()) -> list[str]:
    """Arguments of `vllm serve` behind the command, one word each, `--flag=value` where one value follows."""
    config = recommendation.config
    kept = EngineConfig(tuple(item for item in config.args if item[0] not in without), config.env)
    port = deployment_facts().port
    words = [f"--host={deployment_facts().listen['host']}", f"--port={port}"]
    if recommendation.revision:
        words.append(f"--revision={recommendation.revision}")
    return [*words, *_joined(to_argv(kept, recommendation.table))]


def env_entries(recommendation: ExportInput) -> list[Manifest]:
    """`env` of a container; secrets are keys of the secret `<name>-secrets`."""
    entries: list[Manifest] = []
    for variable in variables(recommendation.config):
        if variable.reference:
            key = {"name": f"{recommendation.name}-secrets", "key": variable.reference}
            entries.append({"name": variable.name, "valueFrom": {"secretKeyRef": key}})
        else:
            entries.append({"name": variable.name, "value": variable.value})
    return entries


def container(recommendation: ExportInput, name: str = "vllm") -> dict[str, object]:
    """The container with its arguments, GPUs, probes and shared memory."""
    port = deployment_facts().port
    entries = env_entries(recommendation)
    body: dict[str, object] = {
        "name": name,
        "image": image_of(recommendation),
        "command": ["vllm", "serve"],
        "args": [recommendation.model, *serve_args(recommendation)],
    }
    if entries:
        body["env"] = entries
    gpus = gpus_of(recommendation.config)
    return {
        **body,
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}},
        **probes(recommendation),
        "volumeMounts": [{"name": mount, "mountPath": path} for mount, path in deployment_facts().mounts.items()],
    }


def probes(recommendation: ExportInput) -> dict[str, object]:
    """A start-up probe that gives the measured start three times over, then readiness and liveness."""
    get = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_PERIOD_S}
    tries = math.ceil(start_limit_s(recommendation) / PROBE_PERIOD_S)
    return {
        "startupProbe": {**get, "failureThreshold": tries},
        "readinessProbe": {**get, "failureThreshold": 1, "timeoutSeconds": 5},
        "livenessProbe": {**get, "failureThreshold": 6, "timeoutSeconds": 5},
    }


def volumes() -> list[Manifest]:
    """Shared memory for tensor parallel workers, and a cache that outlives a container."""
    size = deployment_facts().shared_memory
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}, {"name": "cache", "emptyDir": {}}]


def _joined(tokens: list[str]) -> list[str]:
    """`--flag value` as one word; lists keep their values apart, since `=` takes only one."""
    words: list[str] = []
    index = 0
    while index < len(tokens):
        following = index + 1
        while following < len(tokens) and not tokens[following].startswith("-"):
            following += 1
        values = tokens[index + 1 : following]
        words += [f"{tokens[index]}={values[0]}"] if len(values) == 1 else tokens[index:following]
        index = following
    return words
