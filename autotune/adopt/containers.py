"""A container in a YAML file: its command, arguments, environment and GPUs, for Kubernetes, compose and charts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.adopt.commands import Launch, is_vllm_image, launch_of, launches
from autotune.adopt.env_files import FileVariables
from autotune.adopt.format_facts import format_facts
from autotune.adopt.layout import item_insertion, item_line, key_insertion, shell_line
from autotune.adopt.scripts import notes_of, settings_of_files
from autotune.adopt.shell_script import Call, read_script
from autotune.adopt.shell_state import Value
from autotune.adopt.traced import Traced, joined
from autotune.adopt.values import Document, EnvSetting, EnvStyle, Insertion, Reading
from autotune.adopt.words import Word
from autotune.adopt.yaml_tree import Tree, child, elements, items, text_of

Expand = Callable[[Traced], tuple[Traced, tuple[str, ...]]]
"""Replaces the references of a format in a text; the second part are names without a value."""
_REFERENCE = re.compile(r"\$\$\(|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_GPU_KEYS = ("nvidia.com/gpu", "amd.com/gpu", "requestGPU")


def kubernetes_expand(env: Mapping[str, Traced]) -> Expand:
    """`$(NAME)` from the container's own variables; what is not among them stays as it is."""

    def expand(text: Traced) -> tuple[Traced, tuple[str, ...]]:
        parts: list[Traced] = []
        missing: list[str] = []
        position = 0
        for match in _REFERENCE.finditer(text.text):
            parts.append(text[position : match.start()])
            position = match.end()
            name = match.group(1)
            if name is None:  # `$$(` stands for `$(`
                parts.append(text[match.start() + 1 : match.end()])
            elif name in env:
                parts.append(env[name])
            else:
                parts.append(text[match.start() : match.end()])
                missing.append(name)
        return joined([*parts, text[position:]]), tuple(missing)

    return expand


def read_container(
    tree: Tree,
    node: MappingNode,
    document: Document,
    *,
    expand: Expand | None = None,
    label: str = "",
    serves_alone: bool = False,
    files: FileVariables | None = None,
) -> Reading | None:
    """The vLLM server in a container, or None.

    Args:
        tree: the document.
        node: mapping with some of `image`, `command`, `entrypoint`, `args`, `env`, `environment`.
        document: the file.
        expand: replaces references. Default: as Kubernetes does.
        label: which one it is. Default: its name.
        serves_alone: the image starts vLLM although its name does not say so.
        files: variables that come with the container beside its own, which win.
    """
    keys = {name: value for name, _, value in items(node)}
    env, style, env_insertion = read_env(tree, keys.get("env") or keys.get("environment"), expand)
    if files is not None:
        own = {item.name for item in env}
        env = (*(item for item in files.settings if item.name not in own), *env)
    plain = {name: Traced.made(text) for name, text in (files.values if files is not None else {}).items()}
    plain |= {item.name: item.traced(document.text) for item in env if item.value is not None}
    given = {name: Traced.made(text) for name, text in document.given.items()}
    expanded = expand or kubernetes_expand({**given, **plain})
    image = expanded(tree.traced(keys["image"]))[0].text if "image" in keys else ""
    commands = [keys[name] for name in ("entrypoint", "command", "args") if name in keys]
    words = [word for part in commands for word in words_of(tree, part, expanded)]
    values = {name: Value(value) for name, value in plain.items()}
    call = Call(tuple(words), tuple(values.items()))
    launch = launch_of(call, document.given)
    if launch is None and words and (serves_alone or is_vllm_image(image)) and words[0].plain.startswith("-"):
        launch = Launch(tuple(words))
    variable = next((name for name, _, _ in _env_nodes(keys) if name in format_facts().variables), None)
    if launch is None and variable is None:
        if not (is_vllm_image(image) and "command" not in keys and "entrypoint" not in keys):
            return None
        launch = Launch(())
    reading = _reading(tree, commands, launch, document) if launch else Reading()
    if variable is not None:
        reading = _with_variable(tree, keys, variable, reading, document)
        env = tuple(item for item in env if item.name != variable)
    known = {item.name for item in env} | plain.keys()
    extra = tuple(item for item in (launch.env if launch else ()) if item.name not in known)
    return replace(
        reading, label=label or text_of(keys.get("name")), env=(*env, *extra), env_style=style,
        env_insertion=env_insertion, image=image, gpus=gpus_of(node),
        notes=(*reading.notes, *(files.notes if files is not None else ())),
    )  # fmt: skip


def read_env(
    tree: Tree, node: Node | None, expand: Expand | None = None
) -> tuple[tuple[EnvSetting, ...], EnvStyle, Insertion | None]:
    """Variables in any of the three YAML forms, and where one more goes."""
    if isinstance(node, SequenceNode):
        nodes = elements(node)
        style: EnvStyle = "pairs" if all(isinstance(item, MappingNode) for item in nodes) else "assignments"
        read = [_pair(tree, item, expand) for item in nodes]
        insertion = item_insertion(tree, nodes, flow=bool(node.flow_style))
        return tuple(item for item in read if item is not None), style, insertion
    found = tuple(
        _env_setting(name, tree.traced(value), tree.span(value), value, expand) for name, _, value in items(node)
    )
    return found, "mapping", key_insertion(tree, node)


def gpus_of(node: Node) -> int:
    """GPUs that a container asks for, 0 where it does not say a number."""
    for section in ("limits", "requests"):
        for name, _, value in items(child(node, "resources", section)):
            if name.strip() in _GPU_KEYS and text_of(value).isdigit():
                return int(text_of(value))
    for device in elements(child(node, "deploy", "resources", "reservations", "devices")):
        count, ids = text_of(child(device, "count")), elements(child(device, "device_ids"))
        if count.isdigit() or ids:
            return int(count) if count.isdigit() else len(ids)
    return 0


def _env_nodes(keys: Mapping[str, Node]) -> list[tuple[str, Node, Node]]:
    """(name, item, value node) of every variable with a value."""
    node = keys.get("env") or keys.get("environment")
    if isinstance(node, SequenceNode):
        pairs = [(text_of(child(item, "name")), item, child(item, "value")) for item in elements(node)]
        return [(name, item, value) for name, item, value in pairs if value is not None]
    return [(name, key, value) for name, key, value in items(node)]


def _pair(tree: Tree, node: Node, expand: Expand | None) -> EnvSetting | None:
    if isinstance(node, ScalarNode):
        text = tree.traced(node)
        name, equals, _ = text.text.partition("=")
        if not equals:
            return EnvSetting(name, None, reference="passed through")
        value = text[len(name) + 1 :]
        return _env_setting(name, value, value.span, node, expand)
    name = text_of(child(node, "name"))
    value_node = child(node, "value")
    if value_node is not None:
        return _env_setting(name, tree.traced(value_node), tree.span(value_node), value_node, expand)
    origin = child(node, "valueFrom")
    if not name or origin is None:
        return None
    kind, _, inner = next(iter(items(origin)), ("", node, node))
    where = f"{kind} {text_of(child(inner, 'name'))} {text_of(child(inner, 'key'))}".strip()
    return EnvSetting(name, None, reference=where)


def _env_setting(
    name: str, text: Traced, span: tuple[int, int] | None, node: Node, expand: Expand | None
) -> EnvSetting:
    if not isinstance(node, ScalarNode) or (str(node.tag).endswith(":null") and not text.text):
        return EnvSetting(name, None, reference="passed through")
    shown, missing = expand(text) if expand is not None else (text, ())
    if missing:
        return EnvSetting(name, None, span, shown.text, missing)
    return EnvSetting(name, shown.text, shown.span if shown.text and shown.span else span)


def words_of(tree: Tree, node: Node, expand: Expand) -> list[Word]:
    """The words of a list, or of a text as a shell would split it."""
    if isinstance(node, SequenceNode):
        return [_word(tree, item, expand) for item in elements(node) if isinstance(item, ScalarNode)]
    if isinstance(node, ScalarNode) and not str(node.tag).endswith(":null"):
        text, missing = expand(tree.traced(node))
        reading = read_script(text)
        words = list(reading.calls[0].words) if reading.calls else []
        return [
            replace(word, missing=(*word.missing, *(name for name in missing if name in word.plain))) for word in words
        ]
    return []


def _word(tree: Tree, node: Node, expand: Expand) -> Word:
    text, missing = expand(tree.traced(node))
    start, end = tree.span(node)
    return Word(text, start, end, missing=missing)


def _reading(tree: Tree, commands: Sequence[Node], launch: Launch, document: Document) -> Reading:
    """Command line, files of here documents, and what could not be read."""
    owner = next((node for node in reversed(commands) if isinstance(node, SequenceNode)), None)
    spans = {tree.span(item) for item in elements(owner)}
    # `"$@"` of a script brings the items of a list: one more argument is one more item then.
    in_items = not launch.words and launch.reading is None
    if owner is not None and (in_items or any((word.start, word.end) in spans for word in launch.words)):
        line = item_line(launch.words, tree, owner)
    else:
        line = shell_line(launch.words, document.text, launch.head, [tree.span(node) for node in commands])
    settings, notes = settings_of_files(launch, document)
    unread, more = notes_of(launch)
    return Reading(line=line, settings=settings, unread=unread, notes=(*launch.notes, *notes, *more))


def _with_variable(
    tree: Tree, keys: Mapping[str, Node], variable: str, reading: Reading, document: Document
) -> Reading:
    """Arguments that stand in a variable as one text."""
    node = next(value for name, _, value in _env_nodes(keys) if name == variable)
    script = read_script(tree.traced(node), document.given)
    words = script.calls[0].words if script.calls else ()
    before = reading.line.words if reading.line is not None else ()
    line = shell_line(words, document.text)
    return replace(reading, line=replace(line, words=(*before, *words)))


def script_launch(text: Traced, document: Document) -> Launch | None:
    """The first server that a script starts."""
    found = launches(read_script(text, document.given), document.given)
    return found[0] if found else None
