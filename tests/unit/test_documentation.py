"""README, CONTRIBUTING and docs show what is there: commands, study files, links, Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import autotune
from autotune.cli.registry import COMMANDS, GROUPS
from autotune.export.registry import EXPORTERS
from autotune.spec.load import load_study

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
LATER = {"docs/evidence/README.md"}
"""Written with the measurements of a release; not every checkout has them."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What headings of a page can be linked to as."""
    lines = page.read_text(encoding="utf-8").splitlines()
    heads = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if target.relative_to(ROOT).as_posix() in LATER:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_table_of_commands_is_the_command_line() -> None:
    shown = set(re.findall(r"^\| `autotune ([a-z]+)", README, re.MULTILINE))
    assert shown == COMMANDS.keys() | GROUPS.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_are_shown_exist(page: Path) -> None:
    code = "\n".join(blocks(page.read_text(encoding="utf-8"), ""))
    shown = set(re.findall(r"^(?:\.venv/bin/)?autotune ([a-z]+)", code, re.MULTILINE))
    assert shown <= COMMANDS.keys() | GROUPS.keys()


def test_the_study_of_the_readme_is_valid(tmp_path: Path) -> None:
    (text,) = [block for block in blocks(README, "yaml") if block.startswith("name:")]
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_study(path, ()).search.trials == 30
    assert len(text.splitlines()) <= 20, "the README promises a page that is read at a glance"


def test_the_python_of_the_readme_uses_what_is_offered() -> None:
    (code,) = blocks(README, "python")
    compile(code, "README.md", "exec")
    used = set(re.findall(r"autotune\.(\w+)", code))
    assert used
    assert used <= set(autotune.__all__)


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_every_example_is_in_the_index() -> None:
    index = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in ROOT.glob("examples/*") if path.suffix in (".yaml", ".py")}
    assert {name for name in files if f"({name})" not in index} == set()


def test_every_export_format_is_documented() -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert {name for name in EXPORTERS if f"`{name}`" not in text} == set()
