"""The CPU engine: a real vLLM and a small real model, prepared once in a cache and found again by name.

``python -m autotune.engine.cpu_setup`` prepares both; `locate` finds them. A study file names them
``interpreter: cpu`` and ``model: smollm2-135m``.
"""

from __future__ import annotations

from autotune.engine.cpu_setup.faults import CpuSetupFault, CpuUnsupported
from autotune.engine.cpu_setup.installation import ensure
from autotune.engine.cpu_setup.layout import INTERPRETER_NAME, MODEL_NAME, CpuEngine, cache_root, locate, model_path

__all__ = [
    "INTERPRETER_NAME",
    "MODEL_NAME",
    "CpuEngine",
    "CpuSetupFault",
    "CpuUnsupported",
    "cache_root",
    "ensure",
    "locate",
    "model_path",
]
