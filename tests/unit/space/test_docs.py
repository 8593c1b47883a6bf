"""What docs/search-spaces.md shows is run."""

import re
from collections.abc import Callable
from pathlib import Path

from autotune.space.catalogue import MODEL_FACTS, SpaceContext, list_spaces, load_space

TEXT = (Path(__file__).parents[3] / "docs" / "search-spaces.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_file_loads(write_space: Callable[[str, str], Path]) -> None:
    write_space("mine", blocks("yaml")[1])
    assert load_space("mine", SpaceContext(gpus=2)).size > 100


def test_the_python_example_runs() -> None:
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "docs/search-spaces.md", "exec"), names)
    assert "tensor_parallel_size" in str(names["space"].config(names["point"], names["EngineConfig"]()))  # type: ignore[attr-defined, operator]


def test_every_shipped_space_is_named() -> None:
    assert [item.name for item in list_spaces() if item.shipped and f"`{item.name}`" not in TEXT] == []


def test_every_fact_that_is_named_exists() -> None:
    named = set(re.findall(r"`model\.([a-z_]+)`", TEXT))
    assert named
    assert named <= set(MODEL_FACTS)
