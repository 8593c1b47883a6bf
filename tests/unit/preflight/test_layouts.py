"""The layouts of a plan: GPUs, links, and the reason of every one that is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.assembly import frame
from autotune.cli.plan import make_plan, plan_json
from autotune.host.gpus import Gpu, GpuHost, Link
from autotune.preflight.layouts import LayoutRow, link_warnings
from autotune.study import open_study

STUDY = """\
name: layouts
model: {model}
engine: {{args: {{max_model_len: 8192, load_format: dummy}}}}
hardware: {{gpus: {gpus}, card: h100}}
quality: {{enabled: false}}
space:
  name: layouts
  parameters:
    parallel: {{layout: {layout}}}
    max_num_seqs: {{ladder: [64, 256]}}
"""


def two_sockets(count: int) -> GpuHost:
    """Bridges between neighbours 0-1, 2-3; the rest across sockets."""
    gpus = tuple(
        Gpu(
            index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", 80 << 30, 0,
            links=tuple(
                Link(other, "nvlink" if other // 2 == index // 2 else "numa")
                for other in range(count)
                if other != index
            ),
        )
        for index in range(count)
    )  # fmt: skip
    return GpuHost(gpus)


def rows(tmp_path: Path, host: GpuHost, **values: object) -> dict[str, LayoutRow]:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(**{"model": "glm-4-9b", "gpus": 4, "layout": "{}", **values}))
    made = make_plan(open_study(path), host)
    assert json.loads(json.dumps(plan_json(made)))["layouts"][0]["name"] == made.layouts[0].name
    return {row.name: row for row in made.layouts}


def test_gpus_links_and_idle_ones(tmp_path: Path) -> None:
    found = rows(tmp_path, two_sockets(4))
    assert {name: (row.gpus, row.idle) for name, row in found.items()} == {
        "tp1-dp1": (1, 3), "tp1-dp2": (2, 2), "tp2-dp1": (2, 2),
        "tp1-dp4": (4, 0), "tp2-dp2": (4, 0), "tp4-dp1": (4, 0),
    }  # fmt: skip
    assert found["tp2-dp1"].link == found["tp2-dp2"].link == "nvlink"
    assert found["tp2-dp2"].warning == ""
    assert found["tp4-dp1"].warning == "4 tensor parallel ranks talk across sockets"
    assert not any(row.refused for row in found.values())


def test_a_slow_link_is_refused_where_the_study_says_so(tmp_path: Path) -> None:
    found = rows(tmp_path, two_sockets(4), layout="{slowest_link: pcie}")
    assert found["tp4-dp1"].refused == "4 tensor parallel ranks cross a numa link, and slowest_link is pcie"
    assert [name for name, row in found.items() if row.refused] == ["tp4-dp1"]
    made = open_study(tmp_path / "study.yaml")
    assert make_plan(made, two_sockets(4)).survey.size == 10, "it is not in the space either"


def test_what_does_not_divide_or_fit_says_why(tmp_path: Path) -> None:
    found = rows(
        tmp_path, GpuHost(), model="qwen3-30b-a3b", gpus=4,
        layout="{tensor_parallel: [1, 3, 4], data_parallel: [1, 2], expert_balancing: [false, true], all_to_all: "
        "[deepep_low_latency], use_all_gpus: false}",
    )  # fmt: skip
    assert found["tp3-dp1"].refused == "32 attention heads cannot be divided over 3 ranks"
    assert found["tp4-dp2"].refused == "needs 8 GPUs of 4"
    assert found["tp1-dp1-ep"].refused == "with one rank expert parallel is the same as without"
    tried = {name for name, row in found.items() if not row.refused}
    assert {"tp4-dp1", "tp4-dp1-ep", "tp4-dp1-ep-eplb", "tp1-dp2-ep-a2a=deepep_low_latency",
            "tp1-dp2-ep-eplb-a2a=deepep_low_latency"} <= tried  # fmt: skip
    assert all(not row.link for row in found.values()), "no host, no links"


def test_slow_links_of_layouts_that_may_be_tried_are_said_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(model="glm-4-9b", gpus=4, layout="{}"))
    for settings, expected in (
        ([], ("4 tensor parallel ranks talk across sockets",)),
        (["space.parameters.parallel.layout.slowest_link=pcie"], ()),
        (
            ["space={name: x, parameters: {max_num_seqs: {ladder: [8, 64]}}}", "baseline.args.tensor_parallel_size=4"],
            ("4 tensor parallel ranks talk across sockets",),
        ),
    ):
        made = frame(open_study(path, settings), two_sockets(4))
        assert link_warnings(made.space, made.baseline, made.context) == expected, settings


def test_memory_is_judged_with_the_baseline(tmp_path: Path) -> None:
    found = rows(tmp_path, GpuHost(), model="llama-3.3-70b", gpus=4)
    assert found["tp1-dp1"].refused.startswith("weights: ")
    assert found["tp1-dp4"].refused.startswith("weights: ")
    assert found["tp4-dp1"].refused == ""


@pytest.mark.parametrize("more", [{}, {"prefill.tensor_parallel_size": 2}])
def test_ratios_of_a_split_trial(tmp_path: Path, more: dict[str, int]) -> None:
    path = tmp_path / "split.yaml"
    path.write_text(
        "name: split\nmodel: llama-3.1-8b\nengine: {kind: simulated}\nhardware: {gpus: 4}\n"
        f"quality: {{enabled: false}}\ntopology: disaggregated\nbaseline: {{args: {json.dumps(more)}}}\n"
        "space: {name: x, parameters: {topology.prefill: {choice: [0, 1, 2, 4]}, max_num_seqs: {ladder: [8, 64]}}}\n"
    )
    found = make_plan(open_study(path), GpuHost()).layouts
    names = [row.name for row in found]
    assert names[0] == "4 replicas"
    if more:
        assert names[1:] == ["1 prefill, 2 decode (prefill tp2-dp1)", "2 prefill", "4 prefill"]
        assert "2 prefill engines of 2 and 1 decode engines of 1 do not fit the 4 GPUs" in found[2].refused
    else:
        assert names[1:] == ["1 prefill, 3 decode", "2 prefill, 2 decode", "4 prefill"]
        assert [bool(row.refused) for row in found] == [False, False, False, True]
