"""Runs inside the interpreter that has vLLM: what does its parser make of command lines and configuration files?

Usage: python parse_arguments.py CASES ANSWERS

CASES holds a list of {"argv": [...], "file": path, "names": [...]}; ANSWERS gets for each the values by name, twice.
"""

import importlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "autotune" / "engine"))
script = importlib.import_module("probe_script")


def value(namespace: object, name: str) -> object:
    """The value of a dotted name as JSON can hold it."""
    found: object = namespace
    for part in name.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    enumerated = getattr(found, "name", found)
    return list(enumerated) if isinstance(enumerated, tuple) else enumerated


parser = script.find(script.PARSERS)(script.find(script.PARSER_CLASSES)(prog="vllm serve"))
answers = []
for case in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    for words in (case["argv"], ["--config", case["file"]]):
        namespace = parser.parse_args(["model", *words])
        answers.append({name: value(namespace, name) for name in case["names"]})
pathlib.Path(sys.argv[2]).write_text(json.dumps(answers))
