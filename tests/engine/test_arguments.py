"""The real vLLM's own parser reads what we write, and says the same arguments as the bundled table."""

import json
import random
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.probe import probe
from autotune.space.arguments import bundled_table, check_config
from autotune.space.argv import to_argv, to_yaml_mapping
from autotune.space.catalogue import SpaceContext, list_spaces, load_space
from autotune.space.config import EngineConfig

pytestmark = pytest.mark.real_engine
MODEL = {"num_attention_heads": 64, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 1536,
         "max_position_embeddings": 40960}  # fmt: skip


def drawn_configurations(each: int) -> list[EngineConfig]:
    """Random points of every shipped space."""
    random.seed(7)
    found = []
    for item in list_spaces():
        context = SpaceContext(gpus=0 if item.name == "cpu" else 8, model=MODEL, longest_request=4096)
        space = load_space(item.name, context)
        for _ in range(each):
            found.append(space.config({p.name: random.choice(p.values) for p in space.parameters}, EngineConfig()))
    return found


def test_the_bundled_table_is_what_the_installed_one_says(cpu_vllm: CpuEngine, tmp_path: Path) -> None:
    asked, bundled = probe(str(cpu_vllm.python), tmp_path), bundled_table()
    assert asked.version == bundled.version
    assert asked.names == bundled.names
    assert [(a.name, a.flags, a.kind, a.type, a.choices) for a in asked.arguments] == [
        (a.name, a.flags, a.kind, a.type, a.choices) for a in bundled.arguments
    ]


def test_the_parser_reads_what_we_write(cpu_vllm: CpuEngine, tmp_path: Path) -> None:
    configurations = drawn_configurations(25)
    cases = []
    for index, config in enumerate(configurations):
        assert check_config(config, bundled_table()) == ()
        path = tmp_path / f"{index}.yaml"
        YAML().dump(to_yaml_mapping(config), path)
        cases.append({"argv": to_argv(config), "file": str(path), "names": [name for name, _ in config.args]})
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    script = Path(__file__).with_name("parse_arguments.py")
    command = [str(cpu_vllm.python), str(script), str(tmp_path / "cases.json"), str(tmp_path / "answers.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    for index, config in enumerate(configurations):
        expected = json.loads(json.dumps(dict(config.args)))
        assert answers[2 * index] == expected
        assert answers[2 * index + 1] == expected
