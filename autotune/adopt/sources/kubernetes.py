"""Deployment, StatefulSet, Job, Pod, LeaderWorkerSet: everything that holds a pod template."""

from __future__ import annotations

from dataclasses import replace

from ruamel.yaml.nodes import MappingNode

from autotune.adopt.containers import read_container
from autotune.adopt.sources.claiming import kind_of, looks_like_yaml, objects
from autotune.adopt.values import Document, Reading
from autotune.adopt.yaml_tree import Tree, child, elements, text_of, walk

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
                reading = read_container(tree, container, document)
                if reading is not None:
                    owner = text_of(child(tree.root, "metadata", "name"))
                    if child(container, "readinessProbe", "tcpSocket") is not None:
                        note = "readiness asks whether the port is open, which it is before the model answers"
                        reading = replace(reading, notes=(*reading.notes, note))
                    label = "/".join(part for part in (owner, reading.label) if part)
                    found.append(_with_group(tree, path, replace(reading, label=label)))
    return found


def _with_group(tree: Tree, path: tuple[str, ...], reading: Reading) -> Reading:
    """A LeaderWorkerSet's group has several pods, each with its own GPUs."""
    if kind_of(tree) != "LeaderWorkerSet":
        return reading
    size = text_of(child(tree.root, "spec", "leaderWorkerTemplate", "size"))
    if not size.isdigit() or int(size) < 2:
        return reading
    note = f"a group of {size} pods serves one model: {reading.gpus} GPUs each" if reading.gpus else ""
    notes = (*reading.notes, note) if note else reading.notes
    return replace(reading, gpus=reading.gpus * int(size), notes=notes)
