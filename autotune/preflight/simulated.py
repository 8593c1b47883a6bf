"""Facts of the models that the simulator knows by name, so that plans need no model files."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import SpecError
from autotune.preflight.model import ModelFacts, read_model
from autotune.simulator.shapes import ModelShape, UnknownModel, known_models, load_shape
from autotune.space.expression import nearest


def simulated_facts(model: str) -> ModelFacts:
    """Facts of a local model, else of a shape of the simulator.

    Raises:
        SpecError: neither knows it, or a local `config.json` that cannot be read.
    """
    facts = read_model(model)
    if facts is not None:
        return facts
    try:
        return facts_of_shape(load_shape(model))
    except UnknownModel:
        near = nearest(model, known_models())
        hint = f"did you mean {near}? " if near else ""
        hint += f"legal: a folder with a config.json, or a name that begins with {', '.join(known_models())}"
        raise SpecError(f"the simulator knows no model {model!r}", key="model", hint=hint) from None


def facts_by_name(model: str) -> ModelFacts | None:
    """Facts of a public model from its name alone, for a plan on a machine without its files; never for refusing."""
    try:
        facts = facts_of_shape(load_shape(model))
    except UnknownModel:
        return None
    if "fp8" in model.lower() and not facts.quantization:
        return replace(facts, quantization="fp8", weight_bits=8, quantization_block=128)
    return facts


def facts_of_shape(shape: ModelShape) -> ModelFacts:
    """The same as facts."""
    return ModelFacts(
        architecture=shape.architecture,
        layers=shape.layers,
        attention_layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        vocabulary=shape.vocab,
        max_positions=shape.max_len,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        moe_intermediate=shape.moe_intermediate,
        tied=shape.tied_embeddings,
        quantization=shape.quantization or "",
        weight_bits=8 if shape.quantization_block else 16,
        quantization_block=shape.quantization_block,
        longest=shape.max_len,
    )
