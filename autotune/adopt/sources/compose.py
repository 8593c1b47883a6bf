"""Docker compose."""

from __future__ import annotations

from dataclasses import replace

from ruamel.yaml.nodes import MappingNode

from autotune.adopt.containers import Expand, read_container
from autotune.adopt.shell_state import ShellState
from autotune.adopt.shell_syntax import read_text
from autotune.adopt.sources.claiming import documents, kind_of, looks_like_yaml
from autotune.adopt.traced import Traced
from autotune.adopt.values import Document, Reading
from autotune.adopt.yaml_tree import child, items, text_of


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
            for name, _, service in items(child(tree.root, "services")):
                if isinstance(service, MappingNode):
                    reading = read_container(tree, service, document, expand=expand, label=name)
                    if reading is not None:
                        found.append(replace(reading, notes=(*reading.notes, *_notes(service))))
        return tuple(found)


def compose_expand(document: Document) -> Expand:
    """Compose's own interpolation, from `--var` and a `.env` file beside the compose file."""
    values = {**_env_file(document), **document.given}
    state = ShellState.with_values(values)

    def expand(text: Traced) -> tuple[Traced, tuple[str, ...]]:
        value = state.text(read_text(text, dollars=True))
        return value.text, value.missing

    return expand


def _env_file(document: Document) -> dict[str, str]:
    text = document.beside(".env") or ""
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#")]
    return {name.strip().removeprefix("export "): value.strip().strip("\"'") for name, _, value in pairs}


def _notes(service: MappingNode) -> tuple[str, ...]:
    restart = text_of(child(service, "restart"))
    notes = []
    if restart and "no" not in restart.split(":"):
        notes.append(
            f"restart: {restart} starts a server again by itself when it fails; a study must not run beside it"
        )
    if child(service, "env_file") is not None:
        notes.append("variables of env_file were not read")
    return tuple(notes)
