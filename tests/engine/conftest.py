"""The real vLLM for CPUs, prepared once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine, CpuUnsupported, ensure

# The first test may have to install the engine; the set-up has deadlines of its own.
REAL_ENGINE_TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder time for a set-up and for starts of a real engine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(REAL_ENGINE_TIMEOUT_S))


@pytest.fixture(scope="session")
def cpu_vllm() -> CpuEngine:
    """Interpreter, model and version of a real vLLM; skips where it cannot run, fails where it cannot be installed."""
    try:
        return ensure()
    except CpuUnsupported as reason:
        pytest.skip(str(reason))
