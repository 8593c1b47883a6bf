"""Alerts, dashboard, front, autoscaling and warm-up carry the measured figures."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autotune.errors import SpecError
from autotune.export.operations.figures import figures_of
from autotune.export.registry import OPERATIONS
from autotune.export.values import Measure
from autotune.load.report import Estimate, Level
from autotune.testing.exporter_contract import example

METRICS = (Path(__file__).parents[2] / "data" / "metric_names_0.32.0.txt").read_text().split()


def read(name: str, index: int = 0) -> dict:
    return YAML(typ="safe").load(OPERATIONS[name].render(example())[index].text)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_file_has_its_evidence_and_no_secret(name: str) -> None:
    for file in OPERATIONS[name].render(example(simulated=True)):
        assert "SIMULATED" in file.text
        assert "7, 31, 33" in file.text


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_without_a_measurement_there_is_no_threshold(name: str) -> None:
    bare = replace(example(), evidence=replace(example().evidence, measures=()))
    with pytest.raises(SpecError, match="no measured figures"):
        OPERATIONS[name].render(bare)


def test_figures_are_the_cautious_ends_of_the_intervals() -> None:
    figures = figures_of(example())
    assert (figures.concurrency, figures.ttft_p95, figures.output_tokens) == (64, 0.322, 5100.0)


def test_open_loop_concurrency_follows_from_littles_law() -> None:
    level = Level("open", 40)
    measures = (Measure("e2e_p95_ms", level, Estimate(2000.0, 1900.0, 2100.0, 10)),)
    found = figures_of(replace(example(), evidence=replace(example().evidence, measures=measures)))
    assert found.concurrency == 84


def test_alert_thresholds_are_measured_figures() -> None:
    rules = {rule["alert"]: rule for rule in read("alerts")["groups"][0]["rules"]}
    assert rules["VllmTimeToFirstTokenHigh"]["expr"].endswith("> 0.483")
    assert "> 64" in rules["VllmLoadBeyondMeasured"]["expr"]
    assert "< 3400" in rules["VllmThroughputLow"]["expr"]


def test_every_metric_is_one_that_vllm_has() -> None:
    texts = [f.text for e in OPERATIONS.values() for f in e.render(example())]
    names = {name for text in texts for name in re.findall(r"vllm:(\w+)", text)}
    known = {metric.removeprefix("vllm:") for metric in METRICS}
    assert names
    assert {name.removesuffix("_bucket") for name in names} <= known


def test_the_dashboard_draws_the_lines() -> None:
    board = json.loads(OPERATIONS["grafana"].render(example())[0].text)
    lines = [
        panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        for panel in board["panels"]
        if panel["type"] == "timeseries"
    ]
    assert lines == [0.483, 0.0185, 64, 1, 5100, 0.95]
    spots = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(spots)) == len(spots)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_envoy_lets_in_what_was_measured() -> None:
    resources = read("envoy")["static_resources"]
    limits = resources["clusters"][0]["circuit_breakers"]["thresholds"][0]
    assert (limits["max_requests"], limits["max_pending_requests"]) == (64, 32)
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    names = [item["name"] for item in manager["http_filters"]]
    assert names[-1] == "envoy.filters.http.router"
    assert manager["http_filters"][0]["typed_config"]["token_bucket"]["tokens_per_fill"] == 39


def test_autoscaling_asks_for_a_server_before_the_measured_load_is_reached() -> None:
    keda, hpa = read("autoscale"), read("autoscale", 1)
    assert keda["spec"]["triggers"][0]["metadata"]["threshold"] == "51"
    assert hpa["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "51"


def test_the_warm_up_script_is_python_and_the_probe_runs_it() -> None:
    script = read("warmup")["data"]["warmup.py"]
    ast.parse(script)
    patch = read("warmup", 1)
    container = patch["spec"]["template"]["spec"]["containers"][0]
    command = container["startupProbe"]["exec"]["command"]
    assert command[-1] == "128"
    assert command[1].startswith(container["volumeMounts"][0]["mountPath"])
