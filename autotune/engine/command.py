"""`command`: an engine started by templates of the user's, such as docker, podman, ssh, srun or kubectl."""

from __future__ import annotations

from dataclasses import replace

from autotune.engine.process import ProcessEngine
from autotune.engine.protocol import EngineContext
from autotune.engine.readiness import limits_of
from autotune.engine.recipe import CommandRecipe
from autotune.errors import SpecError
from autotune.spec.study import StudySpec


def command_engine(spec: StudySpec) -> ProcessEngine:
    """The engine that a study asks for.

    What listens may be a process of another host or container, so that the listener is ours is proven by its served
    name (fresh in every start where the template has `{name}`) and, where the template hands the key on, by the key.

    Raises:
        SpecError: the templates are missing, or ask for a name without saying which.
    """
    template = spec.engine.command
    if template is None or not template.start:
        raise SpecError("no template to start with", key="engine.command", hint="Give `start`, a list of words.")
    words = " ".join(template.start)
    if "{name}" not in words and not spec.engine.served_model:
        raise SpecError(
            "the start command does not say which name the engine serves",
            key="engine.command.start",
            hint="Add `--served-model-name`, `{name}`, or set `engine.served_model` to the name it serves.",
        )
    keyed = "{api_key}" in words or "VLLM_API_KEY" in words
    return ProcessEngine(
        CommandRecipe(spec.model, template, tuple(sorted(spec.engine.env.items()))),
        EngineContext(spec.model),
        replace(limits_of(spec), ownership=False, keyed=keyed),
        url=template.url.rstrip("/"),
        served_model="" if "{name}" in words else spec.engine.served_model or "",
    )
