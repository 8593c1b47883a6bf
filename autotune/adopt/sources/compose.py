"""Docker compose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from autotune.adopt.containers import Expand, read_container
from autotune.adopt.env_files import pairs_of, read_env_files
from autotune.adopt.shell_state import ShellState
from autotune.adopt.shell_syntax import read_text
from autotune.adopt.sources.claiming import documents, kind_of, looks_like_yaml
from autotune.adopt.traced import Traced
from autotune.adopt.values import Document, Reading
from autotune.adopt.yaml_tree import Tree, child, detached, elements, items, text_of

_ADDED_UP = ("environment", "env_file")


class Compose:
    """Services whose command starts vLLM; `${NAME:-default}` takes its default, `.env` files count."""

    name = "compose"
    title = "docker compose file"

    def claims(self, document: Document) -> bool:
        """It has services."""
        if not looks_like_yaml(document):
            return False
        trees = documents(document)
        return any(isinstance(child(tree.root, "services"), MappingNode) and not kind_of(tree) for tree in trees)

    def read(self, document: Document) -> tuple[Reading, ...]:
        """Every service that starts vLLM."""
        expand = compose_expand(document)
        found: list[Reading] = []
        for tree in documents(document):
            for name, _, written in items(child(tree.root, "services")):
                if not isinstance(written, MappingNode):
                    continue
                service, unread = extended(written, tree, document)
                files = read_env_files(_env_files(service), document)
                reading = read_container(tree, service, document, expand=expand, label=name, files=files)
                if reading is not None:
                    notes, left = (*reading.notes, *_notes(service)), (*reading.unread, *unread)
                    found.append(replace(reading, notes=notes, unread=left))
        return tuple(found)


def extended(
    service: MappingNode, tree: Tree, document: Document, seen: tuple[str, ...] = ()
) -> tuple[MappingNode, tuple[str, ...]]:
    """A service with what it extends, and what could not be read: a service of this file, or of one beside it."""
    node = child(service, "extends")
    if node is None:
        return service, ()
    name = text_of(node) or text_of(child(node, "service"))
    file = text_of(child(node, "file"))
    place, where = child(tree.root, "services", name), f"{file or document.path.name}:{name}"
    if file:
        other = next(iter(_beside(file, document)), None)
        place = child(other.root, "services", name) if other is not None else None
        tree = other or tree
    if not isinstance(place, MappingNode) or where in seen:
        return service, (f"the service {name} of {file or 'this file'}, which is extended",)
    base, unread = extended(place, tree, document, (*seen, where))
    away = detached(base) if file else base
    return (_merged(away, service) if isinstance(away, MappingNode) else service), unread


def _beside(file: str, document: Document) -> list[Tree]:
    name = PurePath(file).name
    text = document.beside(file) or document.beside(name)
    return documents(Document(document.path.parent / name, text)) if text is not None else []


def _merged(base: MappingNode, own: MappingNode) -> MappingNode:
    """As compose merges: a key of the service itself wins, variables and lists of files add up."""
    pairs = {name: (key, value) for name, key, value in items(base)}
    for name, key, value in items(own):
        before = pairs.get(name)
        if before is not None and name in _ADDED_UP:
            value = _added(before[1], value)
        pairs[name] = (key, value)
    return MappingNode(own.tag, list(pairs.values()), own.start_mark, own.end_mark, flow_style=own.flow_style)


def _added(base: Node, own: Node) -> Node:
    if isinstance(base, MappingNode) and isinstance(own, MappingNode):
        pairs = {name: (key, value) for node in (base, own) for name, key, value in items(node)}
        return MappingNode(own.tag, list(pairs.values()), own.start_mark, own.end_mark, flow_style=own.flow_style)
    if isinstance(base, SequenceNode) and isinstance(own, SequenceNode):
        nodes = [*base.value, *own.value]
        return SequenceNode(own.tag, nodes, own.start_mark, own.end_mark, flow_style=own.flow_style)
    return own


def _env_files(service: MappingNode) -> list[str]:
    node = child(service, "env_file")
    names = [text_of(node), *(text_of(item) or text_of(child(item, "path")) for item in elements(node))]
    return [name for name in names if name]


def compose_expand(document: Document) -> Expand:
    """Compose's own interpolation, from `--var` and a `.env` file beside the compose file."""
    values = {**pairs_of(document.beside(".env") or ""), **document.given}
    state = ShellState.with_values(values)

    def expand(text: Traced) -> tuple[Traced, tuple[str, ...]]:
        value = state.text(read_text(text, dollars=True))
        return value.text, value.missing

    return expand


def _notes(service: MappingNode) -> tuple[str, ...]:
    restart = text_of(child(service, "restart"))
    notes = []
    if restart and "no" not in restart.split(":"):
        notes.append(
            f"restart: {restart} starts a server again by itself when it fails; a study must not run beside it"
        )
    return tuple(notes)
