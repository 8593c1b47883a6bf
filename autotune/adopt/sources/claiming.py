"""Cheap looks at a file, for sources that have to say whether it is theirs."""

from __future__ import annotations

import re

from ruamel.yaml.nodes import MappingNode

from autotune.adopt.values import Document
from autotune.adopt.yaml_tree import Tree, child, parse, text_of

_KEY = re.compile(r"^(?:- )?[\w.\"'-]+\s*:(?:\s|$)")
_YAML = (".yaml", ".yml", ".json")
_SHELL = (".sh", ".bash", ".zsh", ".service", ".txt", ".slurm", ".sbatch")


def looks_like_yaml(document: Document) -> bool:
    """By its name, else by its first line that says something."""
    if document.path.suffix.lower() in _YAML:
        return True
    if document.path.suffix.lower() in _SHELL:
        return False
    lines = [line for line in document.text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and (lines[0].startswith(("---", "{")) or _KEY.match(lines[0]) is not None)


def documents(document: Document) -> list[Tree]:
    """The mappings of a YAML file.

    Raises:
        SpecError: it is no YAML.
    """
    return [tree for tree in parse(document.text, document.path) if isinstance(tree.root, MappingNode)]


def kind_of(tree: Tree) -> str:
    """`kind` of a Kubernetes object, empty where it is none."""
    return text_of(child(tree.root, "kind")) if child(tree.root, "apiVersion") is not None else ""


def objects(document: Document) -> list[Tree]:
    """The Kubernetes objects of a file, those inside a `List` too."""
    found: list[Tree] = []
    for tree in documents(document):
        if kind_of(tree) == "List":
            items = child(tree.root, "items")
            nodes = items.value if items is not None and isinstance(items.value, list) else []
            found += [Tree(tree.text, node, tree.origins) for node in nodes]
        elif kind_of(tree):
            found.append(tree)
    return found
