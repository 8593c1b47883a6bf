"""The figures as `vllm bench serve` defines them, for comparing with it.

Read from vllm/benchmarks/serve.py 0.32: the first token is the first chunk with choices (empty or role-only included);
latencies count from the send, also in open loop; all requests of the run count, ramp and drain included; throughput is
divided by the time from the first send to the last end; TPOT leaves requests of one token out; ITL has one sample a
chunk.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autotune.load.records import Floats, Records
from autotune.load.wire import RECORD_FIELDS

KEYS = {"ttft": "Time to First Token", "tpot": "Time per Output Token (excl. 1st token)", "itl": "Inter-token Latency",
        "e2el": "End-to-end Latency"}  # fmt: skip


def read_records(file: Path) -> Records:
    """The records of a level as `measure` stored them (`LevelReport.samples`)."""
    with np.load(file) as data:
        rows = data["rows"]
        if list(data["fields"]) != list(RECORD_FIELDS):
            raise ValueError(f"{file} was written by another version")
        chunks, offsets, lags = data["chunks"].astype(np.float64), data["offsets"], data["lags"].astype(np.float64)
    stopped = float(np.nanmax(rows[:, RECORD_FIELDS.index("end")], initial=0.0))
    return Records(rows, chunks, offsets, lags, counts={}, errors={}, cpu_share=0.0, stopped=stopped)


def _gaps(records: Records) -> Floats:
    """Gaps between chunks with choices, the step from an empty first chunk to the first token included."""
    gaps: Floats = np.diff(records.chunks)[records.gaps & records.ok[records.owners[1:]]]
    lead = (records.column("first") - records.column("choice"))[records.ok]
    return np.concatenate([gaps, lead[lead > 0]])


def vllm_figures(records: Records) -> dict[str, float]:
    """Figures by the names of vLLM's result file; latencies in ms, throughputs a second."""
    ok = records.ok
    sent, choice, last = (records.column(name)[ok] for name in ("sent", "choice", "last"))
    tokens, prompts = records.output_tokens[ok], records.column("prompt_tokens")[ok]
    if not len(sent):
        return {"completed": 0.0, "failed": float(records.failed.sum())}
    duration = float(np.nanmax(records.column("end")[ok]) - np.nanmin(records.column("sent")))
    several = tokens > 1
    samples = {
        "ttft": choice - sent,
        "tpot": (last - choice)[several] / (tokens[several] - 1),
        "itl": _gaps(records),
        "e2el": last - sent,
    }
    figures = {
        "completed": float(len(sent)),
        "failed": float(records.failed.sum()),
        "duration": duration,
        "total_input_tokens": float(np.nansum(prompts)),
        "total_output_tokens": float(tokens.sum()),
        "request_throughput": len(sent) / duration,
        "output_throughput": float(tokens.sum()) / duration,
        "total_token_throughput": float(tokens.sum() + np.nansum(prompts)) / duration,
    }
    for name, values in samples.items():
        if len(values):
            figures[f"mean_{name}_ms"] = float(values.mean()) * 1e3
            figures[f"median_{name}_ms"] = float(np.median(values)) * 1e3
            figures[f"std_{name}_ms"] = float(values.std()) * 1e3
            figures[f"p99_{name}_ms"] = float(np.percentile(values, 99)) * 1e3
    return figures
