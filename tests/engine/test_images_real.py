"""Images in the load against a real vLLM with a multimodal model: counted, fresh, limited, and in a study."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.protocol import RunningEngine
from autotune.engine.registry import create_engine
from autotune.load.client import LoadClient
from autotune.load.measure import measure
from autotune.load.report import LevelReport, Target
from autotune.outcome import Measured
from autotune.space.config import EngineConfig
from autotune.spec.study import LoadSpec, StudySpec
from autotune.testing.engine_contract import start
from tests.desk import Desk
from tests.engine.tiny_models import tiny_vision

pytestmark = [pytest.mark.real_engine, pytest.mark.long]

STUDY = """\
name: images
model: {model}
quality: {{enabled: false}}
objectives: [{{metric: output_throughput}}]
search: {{trials: 2, proposer: grid, experts: false, sentinel_every: 0}}
confirm: {{rounds: 0}}
load:
  api: chat
  images: {{count: 2, width: 300, height: 200}}
  input_tokens: 50
  output_tokens: 8
  levels: [2]
  window: {{duration: 3s, requests: 20, max_duration: 120s}}
  warmup: {{requests: 4, max_duration: 30s, tolerance: 50%}}
space: {{name: images, parameters: {{max_num_seqs: {{ladder: [1, 8]}}}}}}
baseline: {{args: {{max_num_seqs: 8, limit_mm_per_prompt: {{image: 2}}}}}}
hardware: {{gpus: 0}}
engine:
  python: cpu
  ready_timeout: 600s
  args: {{max_model_len: 2048, enforce_eager: true, kv_cache_memory_bytes: 134217728, load_format: dummy}}
"""


def load(**images: int) -> LoadSpec:
    """Two in flight, 50 tokens of text."""
    return LoadSpec.model_validate(
        {"api": "chat", "images": images or None, "input_tokens": 50, "output_tokens": 4, "levels": [2],
         "warmup": {"requests": 4, "max_duration": "30s"}, "window": {"duration": "2s", "requests": 12}}
    )  # fmt: skip


async def measured(running: RunningEngine, spec: LoadSpec, folder: Path, seed: int) -> LevelReport:
    target = Target(running.url, running.served_model, running.api_key)
    async with LoadClient(1) as client:
        report = await measure(
            target, spec, trial_seed=seed, folder=folder / str(seed), client=client, metrics=running.metrics
        )
    return report.levels[0]


def prompt_tokens(level: LevelReport) -> set[float]:
    """Of all answered requests, as the server counted them."""
    assert level.samples is not None
    with np.load(level.samples) as kept:
        fields = list(kept["fields"])
        rows = kept["rows"][kept["rows"][:, fields.index("status")] == 0]
        return set(rows[:, fields.index("prompt_tokens")])


async def cache_hits(running: RunningEngine) -> float:
    """Images that the engine knew already."""
    async with aiohttp.ClientSession() as session, session.get(running.url + "/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:mm_cache_hits_total"))


async def test_images_are_priced_by_the_server_fresh_and_refused_in_its_own_words(
    cpu_vllm: CpuEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    model = tiny_vision(cpu_vllm, tmp_path / "tiny-vision")
    spec = {"name": "images", "model": str(model), "engine": {"python": "cpu", "ready_timeout": 400},
            "quality": {"enabled": False}}  # fmt: skip
    config = EngineConfig.of(
        {"max_model_len": 2048, "max_num_seqs": 8, "kv_cache_memory_bytes": "128M", "enforce_eager": True,
         "load_format": "dummy", "limit_mm_per_prompt": {"image": 2}}
    )  # fmt: skip
    running = await start(create_engine(StudySpec.model_validate(spec)), config, tmp_path, [])
    try:
        plain = await measured(running, load(), tmp_path, 1)
        assert prompt_tokens(plain) <= {49.0, 50.0, 51.0}, "words are priced, to a token"
        for seed, (images, tokens) in enumerate(
            [
                ({"count": 1, "width": 300, "height": 200}, 129),
                ({"count": 2, "width": 300, "height": 200}, 258),
                ({"count": 1, "width": 1024, "height": 768}, 184),
            ],
            start=2,
        ):
            level = await measured(running, load(**images), tmp_path, seed)
            assert not level.invalid and not level.errors, level
            assert {count - tokens for count in prompt_tokens(level)} <= {49.0, 50.0, 51.0}
            rate, total = level.estimate("output_throughput"), level.estimate("total_throughput")
            assert rate is not None and total is not None
            assert total.value == pytest.approx(rate.value * (54 + tokens) / 4, rel=0.25), "images count there"
            assert dict(level.engine)["prefix_hit_rate"] < 0.2, "the template alone is shared"
        assert await cache_hits(running) == 0
        refused = await measured(running, load(count=3, width=64, height=64), tmp_path, 9)
        assert refused.stopped is not None
        assert "HTTP 400: At most 2 image(s) may be provided in one prompt" in refused.stopped
    finally:
        await running.stop()


def test_a_study_with_images(cpu_vllm: CpuEngine, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))  # a cache of torch's, made to stay
    study = STUDY.format(model=tiny_vision(cpu_vllm, tmp_path / "tiny-vision"))
    desk.write(
        study.replace("name: images\nmodel", "name: refused\nmodel").replace("count: 2", "count: 3"), "refused.yaml"
    )
    planned = desk.run("plan", "refused.yaml", "--json")
    assert planned.returncode == 0, planned.stderr
    (refusal,) = json.loads(planned.stdout)["baseline_refused"]
    assert refusal["reason"] == "a request of the load has 3 images, and the engine takes 2"

    desk.write(study, "images.yaml")
    done = desk.run("run", "images.yaml", timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert desk.left() == []
    outcomes = [record.outcome for record in desk.result("images.yaml").records]
    assert sum(isinstance(outcome, Measured) for outcome in outcomes) == 2, outcomes
