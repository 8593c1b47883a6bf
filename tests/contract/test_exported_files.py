"""The parsers of the formats themselves read the exported files; each is skipped where its tool is not installed."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autotune.export.formats.shell import serve_command
from autotune.export.registry import EXPORTERS, OPERATIONS
from autotune.export.values import ExportFile
from autotune.testing.exporter_contract import example

KUBERNETES = "1.31.0"


def tool(name: str, *words: str) -> str:
    """Path of a tool that works here."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    if words and subprocess.run([path, *words], capture_output=True, check=False, timeout=30).returncode != 0:
        pytest.skip(f"{name} {' '.join(words)} does not work here")
    return path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def written(folder: Path, files: tuple[ExportFile, ...]) -> list[Path]:
    for file in files:
        (folder / file.path).write_text(file.text)
    return [folder / file.path for file in files]


def objects() -> list[tuple[str, dict[str, object]]]:
    """Every Kubernetes object that is exported and is not a custom one."""
    files = [*EXPORTERS["kubernetes"].render(example())]
    files += [file for name in ("autoscale", "warmup") for file in OPERATIONS[name].render(example())]
    found = []
    for file in files:
        for body in YAML(typ="safe").load_all(file.text):
            if "keda" not in str(body.get("apiVersion", "keda")):
                found.append((f"{file.path}:{body['kind']}", body))
    return found


@pytest.mark.parametrize("case", objects(), ids=lambda case: case[0])
def test_kubernetes_schemas_accept_every_object(case: tuple[str, dict[str, object]]) -> None:
    try:
        validator = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("kubernetes-validate is not installed")
    validator.validate(case[1], KUBERNETES, strict=True)


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    promtool = tool("promtool")
    (path,) = written(tmp_path, OPERATIONS["alerts"].render(example()))
    done = run(promtool, "check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 rules found" in done.stdout


def test_alerts_fire_on_what_they_are_for(tmp_path: Path) -> None:
    """promtool plays series against the rules."""
    promtool = tool("promtool")
    (path,) = written(tmp_path, OPERATIONS["alerts"].render(example()))
    cases = {
        "rule_files": [str(path)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": "vllm:num_requests_running", "values": "64x30"},
                    {"series": "vllm:num_requests_waiting", "values": f"{waiting}x30"},
                ],
                "alert_rule_test": [
                    {"eval_time": "20m", "alertname": "VllmLoadBeyondMeasured", "exp_alerts": alerts},
                ],
            }
            for waiting, alerts in ((0, []), (1, [{"exp_labels": {"severity": "warning"}}]))
        ],
    }
    body = YAML(typ="safe").load(path.read_text())
    rule = next(r for r in body["groups"][0]["rules"] if r["alert"] == "VllmLoadBeyondMeasured")
    cases["tests"][1]["alert_rule_test"][0]["exp_alerts"][0]["exp_annotations"] = rule["annotations"]  # type: ignore[index]
    test_file = tmp_path / "test.yaml"
    test_file.write_text(json.dumps(cases))
    done = run(promtool, "test", "rules", str(test_file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "--version")
    (path,) = written(tmp_path, EXPORTERS["systemd"].render(example()))
    done = run(analyze, "verify", "--man=no", str(path))
    complaints = [line for line in done.stderr.splitlines() if path.name in line and "secrets.env" not in line]
    assert not complaints


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    docker = tool("docker", "compose", "version")
    (path,) = written(tmp_path, EXPORTERS["compose"].render(example()))
    done = subprocess.run(
        [docker, "compose", "-f", str(path), "config", "--format", "json"], capture_output=True, text=True, check=False,
        timeout=60, env={**os.environ, "HF_TOKEN": "x"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (service,) = json.loads(done.stdout)["services"].values()
    assert "--max-num-seqs=384" in service["command"]


def test_envoy_accepts_the_configuration(tmp_path: Path) -> None:
    envoy = tool("envoy")
    (path,) = written(tmp_path, OPERATIONS["envoy"].render(example()))
    done = run(envoy, "--mode", "validate", "-c", str(path))
    assert done.returncode == 0, done.stderr


def test_envoy_s_own_messages_have_every_field() -> None:
    """Where Envoy itself is not installed: its messages as Python classes take the file, and refuse a wrong name."""
    messages = "envoy_data_plane.envoy"
    try:
        bootstrap = importlib.import_module(f"{messages}.config.bootstrap.v3").Bootstrap
    except ImportError:
        pytest.skip("envoy-data-plane is not installed")
    for name in ("network.http_connection_manager", "http.local_ratelimit", "http.buffer", "http.router"):
        importlib.import_module(f"{messages}.extensions.filters.{name}.v3")  # so that `@type` is known
    (file,) = OPERATIONS["envoy"].render(example())
    read = bootstrap.from_dict(YAML(typ="safe").load(file.text))
    assert read.static_resources.clusters[0].circuit_breakers.thresholds[0].max_requests == 64
    wrong = YAML(typ="safe").load(file.text.replace("max_pending_requests", "max_waiting_requests"))
    with pytest.raises(Exception, match="max_waiting_requests"):
        bootstrap.from_dict(wrong)


def test_a_shell_passes_on_what_was_meant(tmp_path: Path) -> None:
    """The script runs with a stand-in for vLLM that says its arguments and its environment."""
    shell = tool("sh")
    (path,) = written(tmp_path, EXPORTERS["shell"].render(example()))
    stand_in = tmp_path / "vllm"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$ODD" "$HF_TOKEN" "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HF_TOKEN": "t"}
    done = subprocess.run([shell, str(path)], capture_output=True, text=True, check=False, timeout=30, env=environment)
    assert done.stdout.splitlines() == ["a b$c%d\"e'f", "t", *serve_command(example())[1:]]
    del environment["HF_TOKEN"]
    refused = subprocess.run(
        [shell, str(path)], capture_output=True, text=True, check=False, timeout=30, env=environment
    )
    assert refused.returncode != 0
    assert "set HF_TOKEN" in refused.stderr


def test_the_variables_file_splits_as_a_shell_would() -> None:
    lines = dict(
        line.split("=", 1)
        for line in EXPORTERS["env"].render(example())[0].text.splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert shlex.split(lines["VLLM_SERVE_ARGS"]) == serve_command(example())[3:]
