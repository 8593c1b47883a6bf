"""Deployment, StatefulSet, Job, Pod, LeaderWorkerSet: everything that holds a pod template."""

from __future__ import annotations

from dataclasses import replace

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.adopt.containers import read_container
from autotune.adopt.env_files import FileVariables
from autotune.adopt.sources.claiming import kind_of, looks_like_yaml, objects
from autotune.adopt.values import Document, EnvSetting, Reading
from autotune.adopt.yaml_tree import Tree, child, elements, items, text_of, walk

_KSERVE = ("InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService")


class Kubernetes:
    """Containers of any object; workers of a LeaderWorkerSet carry no server of their own."""

    name = "kubernetes"
    title = "Kubernetes Deployment, StatefulSet, LeaderWorkerSet, Job or Pod"

    def claims(self, document: Document) -> bool:
        """It holds an object that is not KServe's."""
        return looks_like_yaml(document) and any(kind_of(tree) not in _KSERVE for tree in objects(document))

    def read(self, document: Document) -> tuple[Reading, ...]:
        """Every container that starts vLLM."""
        return tuple(reading for tree in objects(document) for reading in pod_readings(tree, document))


def pod_readings(tree: Tree, document: Document) -> list[Reading]:
    """Every vLLM server in an object, with what is true for the whole pod."""
    found: list[Reading] = []
    for path, node in walk(tree.root):
        for container in elements(child(node, "containers")):
            if isinstance(container, MappingNode):
                maps = _config_maps(document)
                reading = read_container(
                    tree, _with_values(container, maps), document, files=_taken(tree, container, maps)
                )
                if reading is not None:
                    owner = text_of(child(tree.root, "metadata", "name"))
                    if child(container, "readinessProbe", "tcpSocket") is not None:
                        note = "readiness asks whether the port is open, which it is before the model answers"
                        reading = replace(reading, notes=(*reading.notes, note))
                    label = "/".join(part for part in (owner, reading.label) if part)
                    found.append(_with_group(tree, path, replace(reading, label=label)))
    return found


def _config_maps(document: Document) -> dict[str, Node]:
    """`data` of the ConfigMaps in the file, by name."""
    maps = [tree.root for tree in objects(document) if kind_of(tree) == "ConfigMap"]
    return {
        text_of(child(root, "metadata", "name")): data for root in maps if (data := child(root, "data")) is not None
    }


def _taken(tree: Tree, container: MappingNode, maps: dict[str, Node]) -> FileVariables:
    """Variables of `envFrom`; what stands in another file is named."""
    found = FileVariables()
    if size := _group_size(tree):
        found.values["LWS_GROUP_SIZE"] = str(size)
    for item in elements(child(container, "envFrom")):
        kind, name = next(((k, text_of(child(v, "name"))) for k, _, v in items(item) if k.endswith("Ref")), ("", ""))
        prefix = text_of(child(item, "prefix"))
        if kind == "configMapRef" and name in maps:
            for key, _, value in items(maps[name]):
                found.values[prefix + key] = text_of(value)
                found.settings.append(EnvSetting(prefix + key, text_of(value), tree.traced(value).span))
        elif name:
            found.notes.append(f"variables of the {kind.removesuffix('Ref')} {name} were not read")
    return found


def _with_values(container: MappingNode, maps: dict[str, Node]) -> MappingNode:
    """`valueFrom.configMapKeyRef` as the value that a ConfigMap of the same file gives."""
    env = child(container, "env")
    if not isinstance(env, SequenceNode):
        return container
    known = [_with_value(item, maps) for item in elements(env)]
    if known == elements(env):
        return container
    made = SequenceNode(env.tag, known, env.start_mark, env.end_mark, flow_style=env.flow_style)
    pairs = [(key, made if value is env else value) for key, value in container.value]
    return MappingNode(container.tag, pairs, container.start_mark, container.end_mark, flow_style=container.flow_style)


def _with_value(item: Node, maps: dict[str, Node]) -> Node:
    reference = child(item, "valueFrom", "configMapKeyRef")
    value = child(maps.get(text_of(child(reference, "name"))), text_of(child(reference, "key")))
    if value is None or not isinstance(item, MappingNode):
        return item
    pairs = [(key, node) for key, node in item.value if text_of(key) != "valueFrom"]
    pairs.append((ScalarNode("tag:yaml.org,2002:str", "value"), value))
    return MappingNode(item.tag, pairs, item.start_mark, item.end_mark, flow_style=item.flow_style)


def _with_group(tree: Tree, path: tuple[str, ...], reading: Reading) -> Reading:
    """A LeaderWorkerSet's group has several pods, each with its own GPUs."""
    size = _group_size(tree)
    if size < 2:
        return reading
    note = f"a group of {size} pods serves one model: {reading.gpus} GPUs each" if reading.gpus else ""
    notes = (*reading.notes, note) if note else reading.notes
    return replace(reading, gpus=reading.gpus * size, notes=notes)


def _group_size(tree: Tree) -> int:
    """Pods of a LeaderWorkerSet's group, which the controller also gives them as a variable; 0 for other objects."""
    size = text_of(child(tree.root, "spec", "leaderWorkerTemplate", "size"))
    return int(size) if kind_of(tree) == "LeaderWorkerSet" and size.isdigit() else 0
