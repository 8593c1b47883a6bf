"""/metrics in Prometheus' text format, under vLLM's names. Times are simulated seconds, whatever the speed factor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .tables import table

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_HISTOGRAMS: Mapping[str, tuple[Sequence[float], str]] = {
    "time_to_first_token_seconds": (_TTFT, "Histogram of time to first token in seconds."),
    "inter_token_latency_seconds": (_ITL, "Histogram of inter-token latency in seconds."),
    "request_time_per_output_token_seconds": (_ITL, "Histogram of time_per_output_token_seconds per request."),
    "e2e_request_latency_seconds": (_LATENCY, "Histogram of e2e request latency in seconds."),
    "request_queue_time_seconds": (_LATENCY, "Histogram of time spent in WAITING phase for request."),
    "request_prefill_time_seconds": (_LATENCY, "Histogram of time spent in PREFILL phase for request."),
    "request_decode_time_seconds": (_LATENCY, "Histogram of time spent in DECODE phase for request."),
    "request_inference_time_seconds": (_LATENCY, "Histogram of time spent in RUNNING phase for request."),
    "request_prompt_tokens": (_COUNTS, "Number of prefill tokens processed."),
    "request_generation_tokens": (_COUNTS, "Number of generation tokens processed."),
    "request_params_max_tokens": (_COUNTS, "Histogram of the max_tokens request parameter."),
    "request_max_num_generation_tokens": (_COUNTS, "Histogram of maximum number of requested generation tokens."),
    "request_params_n": ((1, 2, 5, 10, 20), "Histogram of the n request parameter."),
    "request_prefill_kv_computed_tokens": (_COUNTS, "New KV tokens computed during prefill (excluding cached tokens)."),
    "request_num_preemptions": (_COUNTS, "Histogram of the number of times a request was preempted."),
    "iteration_tokens_total": (_STEP, "Histogram of number of tokens per engine_step."),
}


@dataclass
class Histogram:
    """Counts by upper bound, and the sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass
class EngineMetrics:
    """Everything one server counts."""

    success: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(bounds) for name, (bounds, _) in _HISTOGRAMS.items()}
    )

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Add to a histogram."""
        self.histograms[name].observe(value, times)


@dataclass(frozen=True)
class EngineState:
    """Gauges and totals of one engine at a moment."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generation_tokens: int
    blocks: int
    received_tokens: int = 0


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inner}}} {float(value)}"


def _family(name: str, kind: str, text: str, rows: Sequence[tuple[Mapping[str, str], float]]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(_line(name, labels, value) for labels, value in rows)]


def _histogram(name: str, text: str, labels: Mapping[str, str], histogram: Histogram) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
    running = 0
    for bound, count in zip([*map(float, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        running += count
        lines.append(_line(f"{name}_bucket", {**labels, "le": str(bound)}, running))
    lines.append(_line(f"{name}_count", labels, running))
    lines.append(_line(f"{name}_sum", labels, histogram.total))
    return lines


def _idle(base: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for name, family in table("server")["idle_metrics"].items():
        values = family.get("values", [""])
        extra = [{family["label"]: value} if value else {} for value in values]
        rows = [({**base, **label}, family.get("first", 0.0) if not at else 0.0) for at, label in enumerate(extra)]
        lines += _family(f"vllm:{name}", family["kind"], "Always the same in the simulator.", rows)
    return lines


def exposition(model: str, states: Sequence[EngineState], metrics: EngineMetrics, cache: Mapping[str, str]) -> str:
    """The text of /metrics; ``cache`` holds the labels of ``vllm:cache_config_info``."""
    lines: list[str] = []
    labelled = [({"engine": str(rank), "model_name": model}, state) for rank, state in enumerate(states)]
    simple = (
        ("num_requests_running", "gauge", "Number of requests in model execution batches.", "running"),
        ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", "waiting"),
        ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", "kv_usage"),
        ("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", "preemptions"),
        ("prefix_cache_queries_total", "counter", "Prefix cache queries, in queried tokens.", "prefix_queries"),
        ("prefix_cache_hits_total", "counter", "Prefix cache hits, in cached tokens.", "prefix_hits"),
        ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", "prompt_tokens"),
        ("prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external).", "prefix_hits"),
        ("generation_tokens_total", "counter", "Number of generation tokens processed.", "generation_tokens"),
    )
    for name, kind, text, attribute in simple:
        rows = [(labels, float(getattr(state, attribute))) for labels, state in labelled]
        lines += _family(f"vllm:{name}", kind, text, rows)
    waiting = [
        ({**labels, "reason": reason}, float(state.waiting) if reason == "capacity" else 0.0)
        for labels, state in labelled
        for reason in ("capacity", "deferred")
    ]
    lines += _family("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", waiting)
    sources = [
        ({**labels, "source": source}, float(tokens))
        for labels, state in labelled
        for source, tokens in (
            ("local_compute", state.prompt_tokens - state.prefix_hits - state.received_tokens),
            ("local_cache_hit", state.prefix_hits),
            ("external_kv_transfer", state.received_tokens),
        )
    ]
    lines += _family("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.", sources)
    tiers = [({**labels, "source": "device"}, float(state.prefix_hits)) for labels, state in labelled]
    lines += _family("vllm:prompt_tokens_cached_by_source_total", "counter", "Prefix-cache hit tokens by tier.", tiers)
    base = {"engine": "0", "model_name": model}
    lines += _idle(base)
    finished = [({**base, "finished_reason": reason}, float(count)) for reason, count in metrics.success.items()]
    lines += _family("vllm:request_success_total", "counter", "Count of successfully processed requests.", finished)
    for name, (_, text) in _HISTOGRAMS.items():
        lines += _histogram(f"vllm:{name}", text, base, metrics.histograms[name])
    info = [
        ({**cache, "engine": labels["engine"], "num_gpu_blocks": str(state.blocks)}, 1.0) for labels, state in labelled
    ]
    lines += _family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", info)
    return "\n".join(lines) + "\n"
