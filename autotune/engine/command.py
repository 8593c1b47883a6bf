"""`command`: an engine started by templates of the user's, such as docker, podman, ssh, srun or kubectl."""

from __future__ import annotations

from autotune.engine.process import ProcessEngine
from autotune.engine.protocol import EngineContext
from autotune.engine.readiness import Limits
from autotune.engine.recipe import CommandRecipe
from autotune.errors import SpecError
from autotune.spec.study import StudySpec


def command_engine(spec: StudySpec) -> ProcessEngine:
    """The engine that a study asks for.

    Raises:
        SpecError: the templates are missing.
    """
    if spec.engine.command is None:
        raise SpecError(
            "no template to start with", key="engine.command", hint="Give at least `start`, a list of words."
        )
    recipe = CommandRecipe(
        spec.model, spec.engine.command, tuple(sorted(spec.engine.env.items())), spec.engine.served_model
    )
    return ProcessEngine(recipe, EngineContext(spec.model), Limits(ready=spec.engine.ready_timeout, ownership=False))
