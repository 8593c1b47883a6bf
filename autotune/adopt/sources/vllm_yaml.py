"""The file for `vllm serve --config`."""

from __future__ import annotations

from ruamel.yaml.nodes import MappingNode

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
        names = [name.replace("-", "_") for name, _, _ in items(trees[0].root)]
        return bool(names) and sum(map(_is_argument, names)) * 2 >= len(names)

    def read(self, document: Document) -> tuple[Reading, ...]:
        """One engine."""
        trees = documents(document)
        if not trees:
            return ()
        tree = trees[0]
        root = tree.root if isinstance(tree.root, MappingNode) else None
        settings = settings_of(tree, root)
        return (Reading(document.path.name, settings=settings, settings_insertion=key_insertion(tree, root)),)


def _is_argument(name: str) -> bool:
    table = bundled_table()
    plain = name.removeprefix("no_")
    head = plain.partition(".")[0]
    known = table.knows(plain) or head in table.by_name or "--" + name.replace("_", "-") in table.by_flag
    return known or plain in argument_renames()
