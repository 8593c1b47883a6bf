"""Whose arguments a launch file is held against."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.adopt.registry import adopt_text
from autotune.adopt.tables import table_of, table_of_engine
from autotune.cli.commands import app
from autotune.errors import EnvironmentFault, SpecError
from autotune.lint.check import lint
from autotune.space.arguments import bundled_table
from autotune.spec.study import EngineSpec
from tests.other_vllm import other_vllm


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    return other_vllm(tmp_path)


def test_an_interpreter_is_asked_for_its_own(python: Path) -> None:
    for asked in (table_of(str(python)), table_of_engine(EngineSpec(kind="vllm", python=str(python)))):
        assert asked.table.version == "0.26.0"
        assert asked.table.knows("swap_space")
        assert str(python) in asked.origin


def test_what_is_not_at_hand_is_the_shipped_table_and_says_so(python: Path, tmp_path: Path) -> None:
    gone = table_of_engine(EngineSpec(kind="vllm", python="/nowhere/bin/python"))
    assert (gone.table, gone.origin) == (bundled_table(), "autotune's own table")
    (tmp_path / "arguments.json").unlink()
    broken = table_of_engine(EngineSpec(kind="vllm", python=str(python)))
    assert broken.table is bundled_table()
    assert str(python) in broken.origin
    with pytest.raises(EnvironmentFault):
        table_of(str(python))
    with pytest.raises(EnvironmentFault):
        table_of("/nowhere/bin/python")


def test_adopt_and_lint_use_the_words_of_that_vllm(python: Path, tmp_path: Path) -> None:
    script, study = tmp_path / "a.sh", tmp_path / "s.yaml"
    script.write_text("docker run vllm/vllm-openai:v0.32.0 --model m --swap-space 4 --max-num-seqs 9\n")
    study.write_text(
        f"name: s\nmodel: m\nengine: {{python: {python}}}\nhardware: {{gpus: 1}}\nspace: h100-dense\n"
        "load: {levels: [1]}\nobjectives: [{metric: output_throughput}]\n"
    )
    for options in (["--python", str(python)], ["--study", str(study)]):
        adopted = CliRunner().invoke(app, ["adopt", str(script), "--json", *options])
        said = json.loads(adopted.stdout)
        assert said["read_as"]["version"] == "0.26.0"
        assert said["args"] == {"model": "m", "swap_space": 4.0}
        linted = CliRunner().invoke(app, ["lint", str(script), *options])
        assert "vLLM 0.26.0 has no --max-num-seqs" in linted.stdout
        assert "the file starts vLLM 0.32.0" in linted.stderr
    both = CliRunner().invoke(app, ["lint", str(script), "--python", str(python), "--study", str(study)])
    assert isinstance(both.exception, SpecError)


def test_a_file_that_names_a_release_is_held_against_what_is_known_of_it() -> None:
    run = "docker run vllm/vllm-openai:{} --model m --calculate-kv-scales --max-num-active-seqs 4 --max-num-seqs 9\n"
    found = {version: adopt_text(run.format(version), Path("a.sh")) for version in ("v0.27.1", "v0.32.0", "v0.11.0")}
    old, new, ancient = found.values()
    assert (old.asked, new.asked, ancient.asked) == ("0.27.1", "0.32.0", "0.32.0")
    assert [item.name for item in old.unknown] == ["--max-num-active-seqs"]
    assert "does not have --max-num-active-seqs yet" in old.unknown[0].message
    assert old.config.get("calculate_kv_scales") is True
    assert [item.name for item in new.unknown] == ["--calculate-kv-scales"]
    assert not [finding for finding in lint(old) if finding.argument == "calculate_kv_scales"]


@pytest.mark.parametrize(("version", "said"), [("0.32.1", "it is ignored"), ("0.28.0", "look whether 0.28.0 does")])
def test_a_variable_is_judged_by_the_release_whose_variables_are_known(version: str, said: str) -> None:
    run = f"docker run -e VLLM_NO_SUCH=1 vllm/vllm-openai:v{version} --model m\n"
    (unknown,) = adopt_text(run, Path("a.sh")).unknown
    assert said in unknown.message and not unknown.fatal
