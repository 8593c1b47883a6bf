"""Models, logs and launches that several tests need."""

import json
from pathlib import Path

import pytest

from autotune.engine.failures import read_log
from autotune.engine.startfacts import StartFacts
from autotune.engine.startlog import StartLog
from autotune.preflight.model import ModelFacts, facts_of

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="session")
def models() -> dict[str, ModelFacts]:
    """Facts of public models by a short name."""
    configs = json.loads((DATA / "launches" / "models.json").read_text())
    return {name: facts_of(config) for name, config in configs.items()}


@pytest.fixture(scope="session")
def launches() -> list[dict]:
    """Launches that are known to have run."""
    return json.loads((DATA / "launches" / "known_good.json").read_text())


def start_facts(name: str) -> StartFacts:
    """What a start log says."""
    return StartLog().feed_all(read_log(DATA / name)).facts
