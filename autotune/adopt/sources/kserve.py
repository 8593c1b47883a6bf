"""KServe: InferenceService, ServingRuntime, LLMInferenceService."""

from __future__ import annotations

from dataclasses import replace

from ruamel.yaml.nodes import MappingNode

from autotune.adopt.containers import read_container
from autotune.adopt.sources.claiming import kind_of, looks_like_yaml, objects
from autotune.adopt.sources.kubernetes import pod_readings
from autotune.adopt.values import Document, Reading, Setting
from autotune.adopt.yaml_tree import Tree, child, items, plain, text_of

_KINDS = ("InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService")
_FORMATS = ("vllm", "huggingface")
_PARALLELISM = {"tensor": "tensor_parallel_size", "data": "data_parallel_size", "dataLocal": "data_parallel_size_local",
                "expert": "enable_expert_parallel", "pipeline": "pipeline_parallel_size"}  # fmt: skip
_RUNTIME_FLAGS = ("--model_name", "--model_id", "--model_dir", "--backend", "--task", "--return_probabilities",
                  "--http_port", "--grpc_port", "--workers", "--enable_docs_url")  # fmt: skip


class KServe:
    """The runtime's own flags (`--model_name`, `--backend`) are set aside; the rest goes to vLLM's engine."""

    name = "kserve"
    title = "KServe InferenceService, LLMInferenceService or ServingRuntime"

    def claims(self, document: Document) -> bool:
        """It holds one of KServe's objects."""
        return looks_like_yaml(document) and any(kind_of(tree) in _KINDS for tree in objects(document))

    def read(self, document: Document) -> tuple[Reading, ...]:
        """Every predictor that vLLM serves."""
        found: list[Reading] = []
        for tree in objects(document):
            if kind_of(tree) not in _KINDS:
                continue
            name = text_of(child(tree.root, "metadata", "name"))
            pods = [self._with_model(tree, reading) for reading in pod_readings(tree, document)]
            found += [_with_parallelism(tree, reading) for reading in pods]
            model = child(tree.root, "spec", "predictor", "model")
            if isinstance(model, MappingNode) and text_of(child(model, "modelFormat", "name")) in _FORMATS:
                reading = read_container(tree, model, document, label=name, serves_alone=True) or Reading(label=name)
                found.append(self._with_model(tree, _without_runtime_flags(reading)))
        return tuple(found)

    def _with_model(self, tree: Tree, reading: Reading) -> Reading:
        spec = child(tree.root, "spec")
        places = (("predictor", "model", "storageUri"), ("model", "uri"))
        mounted = next((item.value for item in reading.env if item.name == "STORAGE_URI"), None)
        uri = next((text for place in places if (text := text_of(child(spec, *place)))), mounted or "")
        return replace(reading, model=reading.model or _model_of(uri)) if uri else reading


def _with_parallelism(tree: Tree, reading: Reading) -> Reading:
    """`spec.parallelism` of an LLMInferenceService: the cluster's templates for several hosts make arguments of it.

    Source: config/llmisvc of kserve/kserve; the template for one pod (no `worker`) does not pass it on.
    """
    spec = child(tree.root, "spec")
    given = [(name, key, value) for name, key, value in items(child(spec, "parallelism")) if name in _PARALLELISM]
    if not given:
        return reading
    if child(spec, "worker") is None:
        said = ", ".join(f"{name}={text_of(value)}" for name, _, value in given)
        text = f"spec.parallelism ({said}): whether it becomes an argument depends on the cluster's templates"
        return replace(reading, unread=(*reading.unread, text))
    settings = [
        Setting(_PARALLELISM[name], plain(value), tree.span(key), tree.span(value), name, own=True)
        for name, key, value in given
    ]
    return replace(reading, settings=(*reading.settings, *settings))


def _model_of(uri: str) -> str:
    """A Hugging Face id from `hf://org/name`; other stores stay as they are."""
    return uri.removeprefix("hf://")


def _without_runtime_flags(reading: Reading) -> Reading:
    """Flags of KServe's own server are no flags of vLLM; `--model_id` says the model."""
    if reading.line is None:
        return reading
    words, kept, model, index = reading.line.words, [], reading.model, 0
    while index < len(words):
        flag, equals, value = words[index].plain.partition("=")
        if flag.replace("-", "_").lstrip("_") in {name.lstrip("-") for name in _RUNTIME_FLAGS}:
            if not equals and index + 1 < len(words) and not words[index + 1].plain.startswith("-"):
                index += 1
                value = words[index].plain
            if flag.replace("-", "_").endswith("model_id"):
                model = value
        else:
            kept.append(words[index])
        index += 1
    return replace(reading, line=replace(reading.line, words=tuple(kept)), model=model)
