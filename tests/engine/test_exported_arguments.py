"""The real vLLM's own parser reads every exported file that holds arguments."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autotune.engine.cpu_setup import CpuEngine
from autotune.export.registry import EXPORTERS
from autotune.export.values import ExportInput
from autotune.testing.exporter_contract import example

pytestmark = pytest.mark.real_engine


def exported_words(recommendation: ExportInput) -> dict[str, list[str]]:
    """Arguments behind the model, by format."""

    def text(name: str) -> str:
        return EXPORTERS[name].render(recommendation)[0].text

    yaml = YAML(typ="safe")
    (service,) = yaml.load(text("compose"))["services"].values()
    deployment = next(iter(yaml.load_all(text("kubernetes"))))
    predictor = yaml.load(text("kserve"))["spec"]["predictor"]
    script = text("shell").partition("exec ")[2].replace('"$@"', "")
    unit = text("systemd").partition("ExecStart=")[2].partition("\nRestart")[0]
    return {
        "compose": service["command"][1:],
        "kubernetes": deployment["spec"]["template"]["spec"]["containers"][0]["args"][1:],
        "kserve": predictor["containers"][0]["args"][1:],
        "shell": shlex.split(script.replace("\\\n", " "))[3:],
        "systemd": shlex.split(unit.replace("\\\n", " "))[4:],
        "json": json.loads(text("json"))["command"][3:],
    }


def test_the_parser_reads_every_exported_file(cpu_vllm: CpuEngine, tmp_path: Path) -> None:
    recommendation = example()
    names = [name for name, _ in recommendation.config.args]
    file = tmp_path / "export.yaml"
    file.write_text(EXPORTERS["vllm-yaml"].render(recommendation)[0].text)
    words = exported_words(recommendation)
    cases = [{"argv": argv, "file": str(file), "names": names} for argv in words.values()]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("parse_arguments.py")
    command = [str(cpu_vllm.python), str(script), str(tmp_path / "cases.json"), str(tmp_path / "answers.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    expected = json.loads(json.dumps(dict(recommendation.config.args)))
    for index, name in enumerate(words):
        assert answers[2 * index] == expected, name
        assert answers[2 * index + 1] == expected, "vllm-yaml"
