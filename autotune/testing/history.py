"""A made-up study of any length that has met everything: for tests of reports, of tables and of whatever reads records.

Speeds follow a smooth surface with noise; nothing here claims to be a measurement of anything.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from autotune.engine.failure_values import Advice, Direction
from autotune.engine.protocol import Phase, Resolved
from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Broken, Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.quality.report import QualityCheck, QualityReport, QualityVerdict
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.study import StudySpec

HOSTILE = (
    "</script><script>document.documentElement.dataset.hacked='yes'</script>"
    "<img src=x onerror=alert(1)> & \u2028 %%data%%"
)
"""Text as a log may hold it; no report may let it become markup."""
SECRET = "hf_" + "abcdefgh" * 3
"""Looks like a token; no report may hold it."""
LEVELS = (16.0, 64.0, 128.0)
SPACE: dict[str, tuple[FrozenValue, ...]] = {
    "max_num_seqs": (32, 64, 128, 256, 512),
    "max_num_batched_tokens": (1024, 2048, 4096, 8192, 16384),
    "quantization": (None, "fp8"),
    "kv_cache_dtype": (None, "fp8"),
    "enable_prefix_caching": (True, False),
    "gpu_memory_utilization": (0.85, 0.9, 0.95),
}


def history_spec(levels: Sequence[float] = LEVELS) -> StudySpec:
    """The study file of the made-up study."""
    return StudySpec.model_validate(
        {
            "name": "made-up",
            "model": "example/made-up-8b",
            "load": {"levels": list(levels), "input_tokens": 1024, "output_tokens": 256},
            "slos": [{"metric": "ttft", "percentile": 95, "limit": "1500ms"}],
        }
    )


def made_up_history(count: int, *, seed: int = 1, folder: Path | None = None) -> tuple[TrialRecord, ...]:
    """`count` trials: baseline, search, and at the end a confirmation of the best against the baseline.

    Args:
        count: at least 12.
        seed: of values and noise.
        folder: where the trials' folders would be; None: trials without files.
    """
    rng = random.Random(seed)
    records: list[TrialRecord] = []
    clock = 1_790_000_000.0
    searching = count - 6
    for number in range(count):
        config, origin = _proposal(rng, number, searching, records)
        outcome = _outcome(rng, config, number, origin)
        record = _record(rng, number, Proposal(config, origin=origin, note=_note(origin)), outcome, clock, folder)
        records.append(record)
        clock += record.seconds + 2
    return tuple(records)


def _proposal(
    rng: random.Random, number: int, searching: int, records: Sequence[TrialRecord]
) -> tuple[EngineConfig, str]:
    baseline = EngineConfig.of({"max_num_seqs": 128, "max_num_batched_tokens": 2048})
    if number == 0:
        return baseline, "baseline"
    if number >= searching:
        best = max((one for one in records if isinstance(one.outcome, Measured)), key=_throughput)
        return (best.config if number % 2 else baseline), "confirm"
    origin = "expert" if number < 5 else rng.choice(("sampler", "mutation"))
    return EngineConfig.of({name: rng.choice(values) for name, values in SPACE.items()}), origin


def _note(origin: str) -> str:
    return "a published setting" if origin == "expert" else ""


def _throughput(record: TrialRecord) -> float:
    if not isinstance(record.outcome, Measured):
        return 0.0
    estimate = record.outcome.load.levels[-1].estimate("output_throughput")
    failed = record.outcome.quality is not None and record.outcome.quality.verdict is QualityVerdict.FAILED
    return estimate.value if estimate is not None and not failed else 0.0


def _outcome(rng: random.Random, config: EngineConfig, number: int, origin: str) -> Outcome:
    if origin in ("baseline", "confirm"):
        return measured_outcome(rng, config)
    if number % 17 == 7:
        return Broken("port_taken", f"port 8000 is taken by another process {HOSTILE}", retry=False)
    if config.get("max_num_batched_tokens") == 1024 and config.get("max_num_seqs") == 512:
        return Infeasible("sched_limits", "max_num_batched_tokens is below what max_num_seqs needs", 2.0, started=False)
    if config.get("gpu_memory_utilization") == 0.95 and rng.random() < 0.5:
        advice = Advice("gpu_memory_utilization", Direction.DOWN, "Lower gpu_memory_utilization to 0.9.", "0.9")
        return Infeasible(
            "oom_graph_capture", f"CUDA out of memory {HOSTILE} HF_TOKEN={SECRET}", advice=(advice,), started=True
        )
    return measured_outcome(rng, config)


def measured_outcome(rng: random.Random, config: EngineConfig) -> Measured:
    """What the surface says of a configuration, with the gate failing for an 8-bit KV cache beside 8-bit weights."""
    levels = tuple(_level(rng, config, concurrency) for concurrency in LEVELS)
    return Measured(LoadReport(levels), _quality(rng, config))


def _level(rng: random.Random, config: EngineConfig, concurrency: float) -> LevelReport:
    seqs, batched = _number(config.get("max_num_seqs"), 128), _number(config.get("max_num_batched_tokens"), 2048)
    speed = 1.35 if config.get("quantization") == "fp8" else 1.0
    speed *= 1.04 if config.get("kv_cache_dtype") == "fp8" else 1.0
    busy = min(concurrency, seqs)
    noise = math.exp(rng.gauss(0, 0.012))
    throughput = 6000 * speed * noise * busy / (busy + 45) * (1 - math.exp(-batched / 1400))
    wait = max(0.0, concurrency - seqs) / seqs
    ttft = (140 + 900 * concurrency / 64 * (1 + batched / 24000) / speed) * (0.45 + wait) * math.exp(rng.gauss(0, 0.03))
    figures: dict[str, float] = {
        "output_throughput": throughput,
        "request_throughput": throughput / 256,
        "error_share": 0.0,
    }
    for name, centre in (("ttft", ttft), ("tpot", 1000 * busy / throughput), ("e2e", ttft + 256e3 * busy / throughput)):
        figures |= {f"{name}_p{q}_ms": centre * f for q, f in ((50, 0.7), (75, 0.85), (90, 0.95), (95, 1.0), (99, 1.2))}
    estimates = tuple((key, Estimate(value, value * 0.975, value * 1.03, 900)) for key, value in figures.items())
    engine = (
        ("kv_usage_max", min(1.0, busy / 160)), ("kv_usage_mean", min(1.0, busy / 190)),
        ("preemptions", float(busy > 200)), ("prefix_hit_rate", 0.01),
        ("running_mean", busy * 0.97), ("waiting_mean", concurrency - busy),
    )  # fmt: skip
    return LevelReport(
        Level("closed", concurrency),
        estimates,
        requests=900,
        window_s=30.0,
        warmup_s=6.0,
        engine=engine,
        plan_hash="5ca1ab1e",
    )


def _number(value: FrozenValue, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def _quality(rng: random.Random, config: EngineConfig) -> QualityReport:
    weights, cache = config.get("quantization") == "fp8", config.get("kv_cache_dtype") == "fp8"
    kl = 0.0004 + 0.006 * weights + 0.004 * cache + 0.012 * (weights and cache) + rng.random() * 1e-4
    verdict = QualityVerdict.FAILED if kl > 0.02 else QualityVerdict.PASSED
    checks = tuple(
        QualityCheck(1, name, Estimate(value, value * 0.9, value * 1.1, 3000), 0.02, 0.0003, verdict)
        for name, value in (("kl", kl), ("kl[4k]", kl * 1.2))
    )
    agreement = QualityCheck(1, "agreement", Estimate(1 - kl, 1 - kl * 1.2, 1 - kl * 0.8, 3000), 0.98, 0.998, verdict)
    key = f"{'fp8' if weights else 'bf16'}-{'fp8' if cache else 'auto'}"
    return QualityReport(verdict, (*checks, agreement), max(0.0, kl / 0.02 - 1), key, 12.0)


def _record(
    rng: random.Random, number: int, proposal: Proposal, outcome: Outcome, clock: float, folder: Path | None
) -> TrialRecord:
    refused = isinstance(outcome, Infeasible) and not outcome.started
    start = 0.0 if refused else rng.uniform(55, 110)
    stages: tuple[tuple[str, float], ...] = (
        ("start", start),
        ("warmup", 18.0),
        ("measure", 90.0),
        ("quality", 12.0),
        ("overhead", 1.5),
    )
    if not isinstance(outcome, Measured):
        stages = stages[:1]
    return TrialRecord(
        number=number,
        proposal=proposal,
        outcome=outcome,
        started_at=clock,
        seconds=sum(seconds for _, seconds in stages),
        gpus=1,
        phases=() if refused else (Phase("import", 20.0), Phase("weights", 8.0), Phase("compile", start - 28.0)),
        resolved=None if refused else Resolved(kv_cache_tokens=420_000, version="0.32.0"),
        stage_seconds=stages,
        folder=folder / f"trial-{number:04d}" if folder is not None and not refused else None,
        environment=(("driver", "580.65"), ("gpu", "Made-up GPU 80GB"), ("gpus", "1"), ("python", "3.12.1")),
    )
