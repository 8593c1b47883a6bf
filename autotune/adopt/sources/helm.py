"""Helm values and recipe files: production-stack, llm-d, and others that keep vLLM's arguments under a known key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.adopt.commands import is_vllm_image
from autotune.adopt.containers import kubernetes_expand, read_container, read_env, words_of
from autotune.adopt.format_facts import format_facts
from autotune.adopt.layout import item_line, key_insertion, shell_line
from autotune.adopt.scripts import settings_of
from autotune.adopt.sources.claiming import documents, kind_of, looks_like_yaml
from autotune.adopt.traced import Traced
from autotune.adopt.values import Document, EnvSetting, Insertion, Reading, Setting
from autotune.adopt.words import Word
from autotune.adopt.yaml_tree import Tree, child, elements, items, plain, text_of, walk

_CACHING = "enablePrefixCaching"
_SIDES = ("decode", "prefill")
_ENV_KEYS = ("env", "environment", "extra_env", "base_env", "aggregated_environment", "extraEnv", "envVars")


@dataclass(frozen=True)
class _Part:
    """A subtree that describes one engine, with its path."""

    path: tuple[str, ...]
    node: Node


class ProductionStack:
    """`servingEngineSpec.modelSpec[]` with `vllmConfig`."""

    name = "production-stack"
    title = "Helm values of the vLLM production-stack"

    def claims(self, document: Document) -> bool:
        """It has `servingEngineSpec`."""
        return looks_like_yaml(document) and any(child(t.root, "servingEngineSpec") for t in documents(document))

    def read(self, document: Document) -> tuple[Reading, ...]:
        """One engine for every model."""
        found = []
        for tree in documents(document):
            for model in elements(child(tree.root, "servingEngineSpec", "modelSpec")):
                reading = _chart_default(gather(tree, _Part(("modelSpec",), model), document), tree, model)
                router = text_of(child(tree.root, "routerSpec", "routingLogic"))
                note = (f"requests come through a router ({router}); measure behind it too",) if router else ()
                repository, tag = text_of(child(model, "repository")), text_of(child(model, "tag"))
                image = f"{repository}:{tag}" if repository else ""
                gpus = text_of(child(model, "requestGPU"))
                whole = child(tree.root, "servingEngineSpec")
                secrets = (
                    _secret(tree, model, "hf_token", "HF_TOKEN"), _secret(tree, whole, "vllmApiKey", "VLLM_API_KEY"),
                )  # fmt: skip
                found.append(replace(
                    reading, label=text_of(child(model, "name")), image=image,
                    notes=(*reading.notes, *note, *_chart_extras(model)), gpus=int(gpus) if gpus.isdigit() else 0,
                    env=(*reading.env, *(item for item in secrets if item is not None)),
                    unread=(*reading.unread, *_ignored(model)),
                ))  # fmt: skip
        return tuple(found)


def _secret(tree: Tree, owner: Node | None, key: str, variable: str) -> EnvSetting | None:
    """A token of the chart: its text, or the secret that it names; a placeholder in angle brackets is none."""
    node = child(owner, key)
    if node is None or not (text_of(node) or items(node)) or text_of(node).startswith("<"):
        return None
    if isinstance(node, MappingNode):
        return EnvSetting(variable, None, reference=f"secret {text_of(child(node, 'secretName'))}")
    return EnvSetting(variable, text_of(node), tree.span(node))


def _chart_extras(model: Node) -> tuple[str, ...]:
    """What the chart adds to the command line beside the keys that are read."""
    if text_of(child(model, "lmcacheConfig", "enabled")) != "true":
        return ()
    return ("the chart adds --kv-transfer-config for LMCache; a trial runs without it unless engine.args gives it",)


def _ignored(model: Node) -> tuple[str, ...]:
    """Keys of `vllmConfig` that the chart does not look at."""
    known = format_facts().production_stack
    names = [name for name, _, _ in items(child(model, "vllmConfig")) if name not in known]
    return tuple(f"vllmConfig.{name}: the chart does not read this key; give it in extraArgs" for name in names)


def _chart_default(reading: Reading, tree: Tree, model: Node) -> Reading:
    """The chart gives `--no-enable-prefix-caching` where the key is missing."""
    config = child(model, "vllmConfig")
    if config is None:
        return replace(reading, settings_insertion=key_insertion(tree, model))
    if child(config, _CACHING) is not None:
        return reading
    argument = format_facts().argument_of(("vllmConfig", _CACHING))
    absent = Setting(argument, False, (-1, -1), (-1, -1), _CACHING, own=True)
    note = "the chart switches prefix caching off where vllmConfig.enablePrefixCaching is missing"
    return replace(reading, settings=(*reading.settings, absent), notes=(*reading.notes, note))


class LlmD:
    """Values of the llm-d modelservice chart: `modelArtifacts`, `decode`, `prefill`."""

    name = "llm-d"
    title = "Helm values of llm-d's modelservice"

    def claims(self, document: Document) -> bool:
        """It has `modelArtifacts` and `decode` or `prefill`."""
        if not looks_like_yaml(document):
            return False
        return any(
            child(tree.root, "modelArtifacts") and (child(tree.root, "decode") or child(tree.root, "prefill"))
            for tree in documents(document)
        )

    def read(self, document: Document) -> tuple[Reading, ...]:
        """The decode side first, then the prefill side."""
        found = []
        for tree in documents(document):
            artifacts = child(tree.root, "modelArtifacts")
            uri = text_of(child(artifacts, "uri"))
            model = uri.removeprefix("hf://") if uri.startswith("hf://") else text_of(child(artifacts, "name")) or uri
            for side in ("decode", "prefill"):
                node = child(tree.root, side)
                if isinstance(node, MappingNode) and text_of(child(node, "create")) != "false":
                    found.append(replace(self._side(tree, side, node, document), model=model))
        return tuple(found)

    def _side(self, tree: Tree, side: str, node: MappingNode, document: Document) -> Reading:
        base = gather(tree, _Part((side,), node), document, containers=False)
        for container in elements(child(node, "containers")):
            if isinstance(container, MappingNode):
                reading = read_container(tree, container, document, label=side, serves_alone=True)
                if reading is not None:
                    return replace(reading, label=side, settings=base.settings)
        return replace(base, label=side)


class Helm:
    """Any other values file or recipe with arguments under a key of `formats.toml`."""

    name = "helm"
    title = "other Helm values and recipe files"

    def claims(self, document: Document) -> bool:
        """Something in it reads like arguments of vLLM."""
        if not looks_like_yaml(document):
            return False
        return any(
            not kind_of(tree)
            and (list(_argument_nodes(_Part((), tree.root))) or list(_sides(tree)) or _commands(tree, document))
            for tree in documents(document)
        )

    def read(self, document: Document) -> tuple[Reading, ...]:
        """One engine a document."""
        found = [reading for tree in documents(document) for reading in self._readings(tree, document)]
        return tuple(reading for reading in found if reading.settings or reading.line is not None)

    def _readings(self, tree: Tree, document: Document) -> list[Reading]:
        whole = gather(tree, _Part((), tree.root), document)
        sides = list(_sides(tree))
        if not sides:
            return [_with_env(reading, whole) for reading in _commands(tree, document)] or [whole]
        return [
            replace(whole, label=name, settings=settings_of(tree, node), settings_insertion=key_insertion(tree, node))
            for name, node in sides
        ]


def _with_env(reading: Reading, whole: Reading) -> Reading:
    """A command with the variables that stand elsewhere in the file, where it has none of its own."""
    reading = replace(reading, image=reading.image or whole.image)
    if reading.env:
        return reading
    return replace(reading, env=whole.env, env_style=whole.env_style, env_insertion=whole.env_insertion)


def _commands(tree: Tree, document: Document) -> list[Reading]:
    """Commands that start vLLM anywhere in the file."""
    found = []
    for path, node in walk(tree.root):
        if isinstance(node, MappingNode) and any(child(node, name) is not None for name in ("command", "entrypoint")):
            reading = read_container(tree, node, document, label=".".join(path))
            found += [reading] if reading is not None else []
    return found


def _sides(tree: Tree) -> Iterator[tuple[str, Node]]:
    """Prefill and decode servers that a recipe keeps beside each other, decode first."""
    for path, node in walk(tree.root):
        if path and path[-1] in format_facts().maps:
            found = [(name, value) for name, _, value in items(node) if name in _SIDES and items(value)]
            yield from sorted(found)


def gather(tree: Tree, part: _Part, document: Document, *, containers: bool = True) -> Reading:
    """Everything about vLLM below a node: maps, lists, keys of charts, environment, model."""
    facts = format_facts()
    settings: list[Setting] = []
    words: list[Word] = []
    owner: Node | None = None
    insertion: Insertion | None = None
    for kind, path, node in _argument_nodes(part):
        if kind == "map":
            settings += settings_of(tree, node)
            insertion = insertion or key_insertion(tree, node)
        elif kind == "key":
            name, key, value = next(item for item in items(_at(part, path[:-1])) if item[0] == path[-1])
            argument = facts.argument_of((*part.path, *path))
            settings.append(Setting(argument, plain(value), tree.span(key), tree.span(value), name, own=True))
        elif containers or path[0] != "containers":
            words += _list_words(tree, node) if kind == "list" else words_of(tree, node, kubernetes_expand({}))
            owner = node
    line = None
    if owner is not None:
        listed = isinstance(owner, SequenceNode)
        line = item_line(words, tree, owner) if listed else shell_line(words, tree.text, (), [tree.span(owner)])
    env_node = next(_env_nodes(part), None)
    env, style, env_insertion = read_env(tree, env_node)
    model = next((text_of(value) for path, value in _leaves(part) if facts.says_model(path) and text_of(value)), "")
    return Reading(
        line=line, settings=tuple(settings), settings_insertion=insertion, env=env, env_style=style,
        env_insertion=env_insertion, model=model.removeprefix("hf://"), image=_image(part),
    )  # fmt: skip


def _image(part: _Part) -> str:
    """vLLM's image where a chart keeps repository and tag apart."""
    for path, node in _inner(part):
        repository, tag = text_of(child(node, "repository")), text_of(child(node, "tag"))
        if path[-1:] == ("image",) and is_vllm_image(repository):
            return f"{repository}:{tag}" if tag else repository
    return ""


def _argument_nodes(part: _Part) -> Iterator[tuple[str, tuple[str, ...], Node]]:
    """(`map`, `list`, `text` or `key`; path; node) of everything that reads like arguments, outer ones first."""
    facts = format_facts()
    for path, node in _inner(part):
        for name, _, value in items(node):
            here = (*path, name)
            if name in facts.maps and isinstance(value, MappingNode) and _is_flat(value):
                yield "map", here, value
            elif name in facts.lists and isinstance(value, SequenceNode) and _has_flags(value):
                yield "list", here, value
            elif name in facts.lists and text_of(value).lstrip().startswith("--"):
                yield "text", here, value
            elif isinstance(value, ScalarNode) and facts.argument_of((*part.path, *here)):
                yield "key", here, value


def _inner(part: _Part) -> Iterator[tuple[tuple[str, ...], MappingNode]]:
    for path, node in walk(part.node):
        if isinstance(node, MappingNode) and "guide" not in path:
            yield path, node


def _at(part: _Part, path: tuple[str, ...]) -> Node | None:
    node: Node | None = part.node
    for key in path:
        node = elements(node)[int(key)] if isinstance(node, SequenceNode) else child(node, key)
    return node


def _leaves(part: _Part) -> Iterator[tuple[tuple[str, ...], Node]]:
    for path, node in _inner(part):
        for name, _, value in items(node):
            yield (*part.path, *path, name), value


def _env_nodes(part: _Part) -> Iterator[Node]:
    for _, node in _inner(part):
        for name, _, value in items(node):
            if name in _ENV_KEYS and items(value) + [(str(i), e, e) for i, e in enumerate(elements(value))]:
                yield value


def _is_flat(node: MappingNode) -> bool:
    """Keys with dashes or underscores and plain values, rather than one more level of a chart."""
    return any(isinstance(value, ScalarNode) for _, _, value in items(node))


def _has_flags(node: SequenceNode) -> bool:
    return any(text_of(item).startswith("-") for item in elements(node))


def _list_words(tree: Tree, node: Node) -> list[Word]:
    expand = kubernetes_expand({})
    words = []
    for item in elements(node):
        if isinstance(item, ScalarNode):
            text, missing = expand(tree.traced(item))
            words.append(Word(text if text.text else Traced(), *tree.span(item), missing=missing))
    return words
