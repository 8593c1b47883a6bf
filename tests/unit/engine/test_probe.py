"""The probe of an interpreter, on a small stand-in for vLLM that is a package on the path."""

import sys
from pathlib import Path

import pytest

from autotune.engine.probe import installed_version, probe
from autotune.errors import EnvironmentFault

MODULES = {
    "__init__": "",
    "utils/__init__": "",
    "utils/argparse_utils": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "entrypoints/__init__": "",
    "entrypoints/openai/__init__": "",
    "entrypoints/openai/cli_args": """
import argparse, json, os
def make_arg_parser(parser):
    with open(os.environ["PROBE_COUNT"], "a") as stream:
        stream.write("x")
    parser.add_argument("--max-num-seqs", type=int, help="How many.")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--enable-it", action=switch, default=None, help="--enable-it is deprecated.")
    parser.add_argument("--headless", action="store_true", default=False)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--my-config", "-mc", type=json.loads, default={})
    parser.add_argument("--policy", choices=["a", "b"], default="a")
    parser.add_argument("--log", default=argparse.SUPPRESS)
    return parser
""",
    "engine/__init__": "",
    "engine/arg_utils": """
import dataclasses
@dataclasses.dataclass
class EngineArgs:
    max_num_seqs: int | None = None
    my_config: "MyConfig | None" = None
""",
    "config": """
import dataclasses
@dataclasses.dataclass
class MyConfig:
    mode: int = 0
    depth: int = 0
""",
    "model_executor/__init__": "",
    "model_executor/layers/__init__": "",
    "model_executor/layers/quantization": "QUANTIZATION_METHODS = ['fp8', 'awq']\n",
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path with a package called vllm and its metadata."""
    root = tmp_path / "path"
    for name, text in MODULES.items():
        path = root / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    metadata = root / "vllm-0.29.1+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.29.1+cpu\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("PROBE_COUNT", str(tmp_path / "count"))
    return root


def test_the_parser_is_asked_once(engine: Path, tmp_path: Path) -> None:
    table = probe(sys.executable, tmp_path / "cache")
    assert table.version == "0.29.1"
    kinds = {argument.name: (argument.kind, argument.type) for argument in table.arguments}
    assert kinds == {
        "max_num_seqs": ("value", "int"), "enable_it": ("switch", "bool"), "headless": ("true", "bool"),
        "sizes": ("list", "int"), "my_config": ("json", "json"), "policy": ("value", "text"), "log": ("value", "text"),
    }  # fmt: skip
    assert table.by_name["policy"].choices == ("a", "b")
    assert table.by_name["log"].default is None
    assert table.by_name["enable_it"].deprecated
    assert table.by_name["enable_it"].negative == "--no-enable-it"
    assert table.knows("my_config.mode")
    assert not table.knows("my_config.nonsense")
    assert table.quantizations == ("fp8", "awq")
    assert probe(sys.executable, tmp_path / "cache") == table
    assert (tmp_path / "count").read_text() == "x"


def test_another_version_is_asked_again_and_a_damaged_answer_too(engine: Path, tmp_path: Path) -> None:
    probe(sys.executable, tmp_path / "cache")
    (answer,) = (tmp_path / "cache").iterdir()
    answer.write_text("{", encoding="utf-8")
    probe(sys.executable, tmp_path / "cache")
    metadata = engine / "vllm-0.29.1+cpu.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n", encoding="utf-8")
    assert probe(sys.executable, tmp_path / "cache").version == "0.30.0"
    assert (tmp_path / "count").read_text() == "xxx"


def test_an_interpreter_without_vllm(tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="no vllm in this interpreter"):
        installed_version(sys.executable)


def test_no_interpreter_at_all(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot run"):
        probe(str(tmp_path / "python"), tmp_path)


def test_a_vllm_whose_parser_breaks(engine: Path, tmp_path: Path) -> None:
    (engine / "vllm" / "entrypoints" / "openai" / "cli_args.py").write_text("raise RuntimeError('no device')\n")
    with pytest.raises(EnvironmentFault, match="no device"):
        probe(sys.executable, tmp_path / "cache")
