"""What belongs to a launch beside its command line: files for `--config`, and what a reader should know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ruamel.yaml.nodes import MappingNode, Node

from autotune.adopt.commands import Launch
from autotune.adopt.values import Document, Setting
from autotune.adopt.yaml_tree import Tree, items, parse, plain
from autotune.errors import SpecError


def settings_of(tree: Tree, node: Node | None) -> tuple[Setting, ...]:
    """Keys of a mapping with vLLM's own names."""
    return tuple(
        Setting(name.replace("-", "_"), plain(value), tree.span(key), tree.span(value), name)
        for name, key, value in items(node)
    )


def settings_of_files(launch: Launch, document: Document) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Arguments of the file that `--config` names: a here document of the script, or a file beside it."""
    name = _config_file(launch)
    if not name:
        return (), ()
    written = launch.reading.files if launch.reading is not None else {}
    body = written.get(name) or written.get(PurePath(name).name)
    if body is not None:
        trees = _parsed(body.text.text, document, body.text.origins)
        return (settings_of(trees[0], trees[0].root) if trees else ()), (
            f"arguments of {name} were read from the script",
        )
    text = document.beside(PurePath(name).name)
    if text is None:
        return (), (f"the arguments of {name} were not read: there is no such file beside this one",)
    trees = _parsed(text, document, ())
    settings = settings_of(trees[0], trees[0].root) if trees else ()
    nowhere = tuple(Setting(s.name, s.value, (-1, -1), (-1, -1), s.spelling) for s in settings)
    return nowhere, (f"arguments of {name} beside this file were read; a change of them is given on the command line",)


def notes_of(launch: Launch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What could not be read, and what the reading rests on."""
    unread, notes = [], []
    if not launch.certain:
        notes.append("the server is started under a condition that could not be decided")
    if launch.reading is not None:
        notes += [
            f"a condition depends on {name}; it was read as if that were not set" for name in launch.reading.conditions
        ]
        unread += [f"the file {name} that the script reads in" for name in launch.reading.sourced]
    return tuple(unread), tuple(notes)


def _config_file(launch: Launch) -> str:
    words: Sequence[str] = [word.plain for word in launch.words]
    for index, word in enumerate(words):
        if word == "--config" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return ""


def _parsed(text: str, document: Document, origins: tuple[int, ...]) -> list[Tree]:
    try:
        trees = parse(text, document.path, origins)
    except SpecError:
        return []
    return [tree for tree in trees if isinstance(tree.root, MappingNode)]
