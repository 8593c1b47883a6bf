"""A study that has been run, made from records instead of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.quality.report import QualityCheck, QualityReport, QualityVerdict
from autotune.result import Recommendation, StudyResult
from autotune.search.objectives import Objectives
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study

STUDY = """
name: chat
model: meta-llama/Llama-3.1-8B-Instruct
engine: {{kind: {kind}, env: {{HF_TOKEN: "${{HF_TOKEN}}"}}}}
hardware: {{gpus: 1}}
baseline: {{args: {{max_num_seqs: 256, swap_space: 4}}}}
space: h100-dense
load: {{levels: [16, 64]}}
objectives: [{{metric: output_throughput}}, {{metric: ttft, percentile: 95}}]
slos: [{{metric: ttft, percentile: 95, limit: 500ms}}]
"""
POINTS = (  # max_num_seqs, output tokens per second, TTFT p95 in ms
    (256, 4000.0, 400.0), (384, 5200.0, 460.0), (512, 5600.0, 700.0), (64, 2000.0, 120.0), (128, 4100.0, 200.0),
)  # fmt: skip

QUALITY = QualityReport(
    QualityVerdict.UNDECIDED,
    (QualityCheck(1, "kl", Estimate(0.019, 0.017, 0.022, 3072), 0.02, 0.0002, QualityVerdict.UNDECIDED, ""),),
    0.0, "0123456789ab", 4.0,
)  # fmt: skip
"""What the gate found on the fourth of them."""


def _measured(tokens: float, ttft: float) -> Measured:
    def level(load: float, scale: float) -> LevelReport:
        figures = {
            "output_throughput": tokens * scale, "request_throughput": tokens * scale / 128,
            "ttft_p95_ms": ttft * scale,
            "tpot_p95_ms": 9.0, "e2e_p95_ms": 2000.0,
        }  # fmt: skip
        rows = tuple((key, Estimate(v, 0.98 * v, 1.02 * v, 500)) for key, v in figures.items())
        return LevelReport(Level("closed", load), rows, requests=500, window_s=30.0)

    return Measured(LoadReport((level(16, 0.5), level(64, 1.0))), QUALITY if tokens == POINTS[3][1] else None)


def _record(number: int, origin: str, seqs: int, outcome: Outcome) -> TrialRecord:
    config = EngineConfig.of({"max_num_seqs": seqs})
    return TrialRecord(
        number, Proposal(config, origin=origin), outcome, 1_795_000_000.0 + number, 60.0, gpus=1,
        stage_seconds=(("start", 95.0), ("measure", 30.0)),
        environment=(("gpu", "NVIDIA H100"), ("gpus", "1"), ("driver", "570.1")),
    )  # fmt: skip


@pytest.fixture(params=["vllm"])
def study(tmp_path: Path, request: pytest.FixtureRequest) -> Study:
    """Five measured trials, one that does not fit, and a recommendation with proof."""
    path = tmp_path / "chat.yaml"
    path.write_text(STUDY.format(kind=request.param))
    opened = open_study(path)
    records = [_record(i, "baseline" if i == 0 else "sampler", p[0], _measured(*p[1:])) for i, p in enumerate(POINTS)]
    records.append(_record(5, "sampler", 4096, Infeasible("oom_profiling", "the KV cache does not fit")))
    best = records[1].config
    final = Recommendation(
        best, records[0].config, 1, True, "better than what you run today: x1.30 [1.27, 1.33] over 3 rounds",
        (("output_throughput@last", 1.3, 1.27, 1.33),), "quality gate passed",
        (("max_num_seqs", "x1.300 [1.250, 1.350] in output_throughput@last over 2 rounds"),),
    )  # fmt: skip
    store = opened.store()
    store.open(opened.spec.model_dump_json(), "space")
    for record in records:
        store.begin(record.number, 1, record.proposal)
        store.add(record)
    result = StudyResult("chat", opened.folder, Objectives.of(opened.spec), (), None, final, "", ())
    store.put("recommendation", "final", result.to_json())
    store.close()
    return opened
