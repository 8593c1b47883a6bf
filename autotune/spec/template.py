"""A first study file for a model on a machine, commented. Decides nothing that it does not explain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from autotune.spec.resolved import yaml_value

SHORTEST_CONTEXT = 64
"""Tokens. A configuration that states less is not believed."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the study may run on.

    Attributes:
        gpus: number of GPUs that the study may use.
        card: name of the GPU as NVML gives it, empty without one.
        memory: bytes of memory of one GPU, 0 where unknown.
    """

    gpus: int = 0
    card: str = ""
    memory: int = 0


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What is known of the model; the defaults stand for a model that is not on this machine.

    Attributes:
        known: its configuration was read.
        architecture: class name, empty where unknown.
        experts: experts of a layer, 0 for a dense model.
        quantisation: method that the weights come with, empty for none.
        context: longest context in tokens, 0 where unknown.
        weight_bytes: size of the weight files, 0 where unknown.
    """

    known: bool = False
    architecture: str = ""
    experts: int = 0
    quantisation: str = ""
    context: int = 0
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A study file that was written, and why it is as it is.

    Attributes:
        text: the file.
        space: name of the space that was chosen.
        reasons: one sentence for each choice.
    """

    text: str
    space: str
    reasons: tuple[str, ...]


def draft_study(model: str, machine: Machine, traits: ModelTraits, *, first_line: str = "") -> Draft:
    """Write a study for `model`. `first_line` is a comment that stands above everything."""
    space, why_space = _space(machine, traits)
    context, why_context = _context(machine, traits)
    lengths = (128, 32) if machine.gpus == 0 else (1024, 256)
    prompt = min(lengths[0], context * 3 // 4)
    reasons = tuple(
        reason for reason in (_machine_reason(machine), _model_reason(model, traits), why_space, why_context) if reason
    )
    text = files("autotune").joinpath(f"data/study_{'cpu' if machine.gpus == 0 else 'gpu'}.yaml").read_text("utf-8")
    values = {
        "name": study_name(model),
        "model": yaml_value(model),
        "context": str(context),
        "gpus": str(machine.gpus),
        "space": space,
        "input": str(prompt),
        "output": str(min(lengths[1], context - prompt)),
    }
    body = re.sub(r"@([a-z]+)@", lambda match: values[match.group(1)], text)
    head = [*([first_line] if first_line else []), *(f"# {reason}" for reason in reasons)]
    return Draft("\n".join([*head, _aligned(body)]), space, reasons)


def _aligned(text: str) -> str:
    """The text with the comments behind values in one column."""
    return re.sub(r"(?m)^( *[^#\s][^#\n\"']*?)  # ", lambda match: f"{match.group(1):<32}# ", text)


def study_name(model: str) -> str:
    """A legal study name from a model's id or path."""
    last = model.rstrip("/").rsplit("/", 1)[-1]
    name = re.sub(r"[^a-z0-9._-]+", "-", last.lower()).strip("-._")[:64].rstrip("-._")
    return name or "study"


def _space(machine: Machine, traits: ModelTraits) -> tuple[str, str]:
    if machine.gpus == 0:
        return "cpu", "Space cpu: there is no GPU to use."
    if traits.experts and machine.gpus > 1:
        why = f"{traits.experts} experts on {machine.gpus} GPUs, so the layout (TP x DP x EP) is tuned too"
        return "h100-moe-multi-gpu", f"Space h100-moe-multi-gpu: {why}."
    if traits.experts:
        return "h100-moe", f"Space h100-moe: a mixture of {traits.experts} experts on one GPU."
    if not traits.known:
        return "h100-dense", "Space h100-dense: taken for a dense model; use h100-moe for a mixture of experts."
    return "h100-dense", "Space h100-dense: a dense model."


def _machine_reason(machine: Machine) -> str:
    if machine.gpus == 0:
        return "Machine: no GPU, so the CPU engine is used (`make run` installs it)."
    memory = f" with {machine.memory / 2**30:.0f} GiB" if machine.memory else ""
    card = machine.card or "GPU of unknown type"
    return f"Machine: {machine.gpus} x {card}{memory}."


def _model_reason(model: str, traits: ModelTraits) -> str:
    if not traits.known:
        return f"Model: {_one_line(model)} is not on this machine, so nothing is known of it yet."
    kind = f"{traits.experts} experts" if traits.experts else "dense"
    parts = [traits.architecture or "unknown architecture", kind]
    if traits.quantisation:
        parts.append(f"weights quantised ({traits.quantisation})")
    if traits.context:
        parts.append(f"context {traits.context}")
    if traits.weight_bytes:
        parts.append(f"{traits.weight_bytes / 1e9:.1f} GB of weights")
    return f"Model: {_one_line(', '.join(parts))}."


def _one_line(text: str) -> str:
    """Text from outside, fit for a comment."""
    return re.sub(r"[^\x20-\x7e]+", " ", text)


def _context(machine: Machine, traits: ModelTraits) -> tuple[int, str]:
    wanted = 2048 if machine.gpus == 0 else 8192
    if SHORTEST_CONTEXT <= traits.context <= wanted:
        return traits.context, ""
    return wanted, f"Context: bounded to {wanted} tokens; the load below needs less, and the KV cache gains."
