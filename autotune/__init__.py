"""Auto-tuning for vLLM: propose, measure, confirm, export.

From Python::

    import autotune

    result = autotune.tune("studies/demo.yaml", {"search.trials": 8})
    print(result.front_frame())

Names are loaded at their first use, so that `import autotune` costs nothing in a process that needs only a part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.api import Settings, load_study, read, tune, tune_async
    from autotune.errors import AutotuneError, EnvironmentFault, SpecError, StoreError
    from autotune.events import Event, Observer
    from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
    from autotune.result import Recommendation, StudyResult
    from autotune.study import Study

__version__ = "0.1.0"

_HOMES = {
    "autotune.api": ("Settings", "load_study", "read", "tune", "tune_async"),
    "autotune.errors": ("AutotuneError", "EnvironmentFault", "SpecError", "StoreError"),
    "autotune.events": ("Event", "Observer"),
    "autotune.outcome": ("Broken", "Infeasible", "Measured", "TrialRecord"),
    "autotune.result": ("Recommendation", "StudyResult"),
    "autotune.study": ("Study",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AutotuneError",
    "Broken",
    "EnvironmentFault",
    "Event",
    "Infeasible",
    "Measured",
    "Observer",
    "Recommendation",
    "Settings",
    "SpecError",
    "StoreError",
    "Study",
    "StudyResult",
    "TrialRecord",
    "load_study",
    "read",
    "tune",
    "tune_async",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
