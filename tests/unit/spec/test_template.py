"""`autotune init` and `autotune validate`: what they write, choose and print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.init import init
from autotune.cli.validate import objective_text, validate
from autotune.errors import SpecError
from autotune.spec.load import load_study
from autotune.spec.study import ObjectiveSpec
from autotune.spec.template import Machine, ModelTraits, draft_study, study_name

H100 = 80 * 2**30
app = typer.Typer()
app.command()(init)
app.command()(validate)


def model_folder(folder: Path, config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model-00001.safetensors").write_bytes(b"x" * 1000)
    return str(folder)


@pytest.mark.parametrize(
    ("gpus", "experts", "space"),
    [
        (0, 0, "cpu"),
        (0, 8, "cpu"),
        (1, 0, "h100-dense"),
        (8, 0, "h100-dense"),
        (1, 8, "h100-moe"),
        (8, 128, "h100-moe-multi-gpu"),
    ],
)
def test_the_space_follows_machine_and_model(gpus: int, experts: int, space: str) -> None:
    draft = draft_study("org/name", Machine(gpus, "NVIDIA H100 80GB HBM3", H100), ModelTraits(True, experts=experts))
    assert draft.space == space
    assert any(reason.startswith(f"Space {space}:") for reason in draft.reasons)
    assert all(f"# {reason}" in draft.text for reason in draft.reasons)


@pytest.mark.parametrize("context", [0, 1, 64, 100, 512, 8192, 1_000_000])
@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize(
    "model", ["org/Name", "/models/My Model  # 7 (b)", "yes", "a: 'b' \"c\" @name@", "ünïcode", "-"]
)
def test_every_draft_loads_and_keeps_the_model(tmp_path: Path, context: int, gpus: int, model: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(draft_study(model, Machine(gpus), ModelTraits(True, context=context)).text, encoding="utf-8")
    study = load_study(path)
    assert study.model == model
    assert study.hardware.gpus == gpus


def test_names_are_legal() -> None:
    assert study_name("Qwen/Qwen3-8B") == "qwen3-8b"
    assert study_name("/models/My Model/") == "my-model"
    assert study_name("///") == "study"
    assert len(study_name("x" * 200)) == 64


def test_init_writes_a_study_that_validates(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "study.yaml"
    model = model_folder(tmp_path, {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024})
    result = CliRunner().invoke(app, ["init", model, "--out", str(out), "--gpus", "0"])
    assert result.exit_code == 0, result.output
    assert "Space cpu" in result.output
    assert load_study(out).engine.args["max_model_len"] == 1024
    checked = CliRunner().invoke(app, ["validate", str(out), "--set", "search.trials=7"])
    assert checked.exit_code == 0, checked.output
    assert "trials: 7" in checked.output
    assert "minimize ttft p90 at the last level" in checked.output
    assert f"{out} is a valid study" in checked.output


@pytest.mark.parametrize(
    ("config", "gpus", "said"),
    [
        (
            {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960},
            2,
            ["Space h100-dense", "context 40960"],
        ),
        (
            {"num_experts": 128, "quantization_config": {"quant_method": "fp8"}},
            8,
            ["Space h100-moe-multi-gpu", "128 experts", "weights quantised (fp8)"],
        ),
        ({"text_config": {"num_local_experts": 16}}, 1, ["Space h100-moe:", "16 experts"]),
    ],
)
def test_init_says_what_it_chose_and_why(tmp_path: Path, config: object, gpus: int, said: list[str]) -> None:
    out = tmp_path / "study.yaml"
    model = model_folder(tmp_path, config)
    result = CliRunner().invoke(app, ["init", model, "--out", str(out), "--gpus", str(gpus)])
    assert result.exit_code == 0, result.output
    for text in said:
        assert text in result.output
    assert load_study(out).model == model


def test_init_keeps_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "study.yaml"
    out.write_text("mine", encoding="utf-8")
    refused = CliRunner().invoke(app, ["init", "org/name", "--out", str(out)])
    assert isinstance(refused.exception, SpecError)
    assert "--force" in str(refused.exception)
    assert out.read_text(encoding="utf-8") == "mine"
    assert CliRunner().invoke(app, ["init", "org/name", "--out", str(out), "--force"]).exit_code == 0
    assert load_study(out).name == "name"


def test_init_refuses_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = CliRunner().invoke(app, ["init", "org/name", "--out", str(tmp_path / "file" / "study.yaml")])
    assert isinstance(result.exception, SpecError)


def test_validate_speaks_json(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("name: a\nmodel: b\nspace: cpu\nhardware: {gpus: 0}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(path), "--json"])
    report = json.loads(result.output)
    assert report["study"]["load"]["levels"] == [16.0]
    assert report["objectives"] == [
        "maximize output_throughput at the last level",
        "minimize ttft p95 at the last level",
    ]
    assert report["parameters"]["max_num_seqs"]["kind"] == "ladder"


def test_validate_refuses_a_space_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("name: a\nmodel: b\nspace: cpuu\nhardware: {gpus: 0}\n", encoding="utf-8")
    error = CliRunner().invoke(app, ["validate", str(path)]).exception
    assert isinstance(error, SpecError)
    assert "cpu" in str(error.hint)


def test_objectives_in_words() -> None:
    assert objective_text(ObjectiveSpec(metric="capacity", per_gpu=True)) == "maximize capacity per GPU"
    assert objective_text(ObjectiveSpec(metric="itl", percentile=90, level=8)) == "minimize itl p90 at level 8"
    assert objective_text(ObjectiveSpec(metric="goodput", level="best")) == "maximize goodput at the best level"
