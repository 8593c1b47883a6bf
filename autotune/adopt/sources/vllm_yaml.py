"""The file for `vllm serve --config`."""

from __future__ import annotations

from ruamel.yaml.nodes import MappingNode, Node

from autotune.adopt.layout import key_insertion
from autotune.adopt.scripts import settings_of
from autotune.adopt.sources.claiming import documents, looks_like_yaml
from autotune.adopt.values import Document, Reading
from autotune.adopt.yaml_tree import items
from autotune.space.arguments import bundled_table
from autotune.space.renames import argument_renames


class VllmYaml:
    """A flat mapping with vLLM's own names."""

    name = "vllm-yaml"
    title = "file for `vllm serve --config`"

    def claims(self, document: Document) -> bool:
        """At least half of the keys are arguments of vLLM, of today's or an older one."""
        if not looks_like_yaml(document):
            return False
        trees = documents(document)
        if len(trees) != 1:
            return False
        pairs = [(name.replace("-", "_"), value) for name, _, value in items(trees[0].root)]
        known = sum(_is_argument(name) and not _is_section(name, value) for name, value in pairs)
        return known > 0 and known * 2 >= len(pairs)

    def read(self, document: Document) -> tuple[Reading, ...]:
        """One engine."""
        trees = documents(document)
        if not trees:
            return ()
        tree = trees[0]
        root = tree.root if isinstance(tree.root, MappingNode) else None
        settings = settings_of(tree, root)
        return (Reading(document.path.name, settings=settings, settings_insertion=key_insertion(tree, root)),)


def _is_section(name: str, value: Node) -> bool:
    """A mapping under a name that takes one value, such as `model: {name: ...}`: another format's section."""
    argument = bundled_table().by_name.get(name)
    return isinstance(value, MappingNode) and argument is not None and argument.kind != "json"


def _is_argument(name: str) -> bool:
    table = bundled_table()
    plain = name.removeprefix("no_")
    head = plain.partition(".")[0]
    known = table.knows(plain) or head in table.by_name or "--" + name.replace("_", "-") in table.by_flag
    return known or plain in argument_renames()
