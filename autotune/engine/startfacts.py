"""What an engine says about itself while it starts: memory, cache, version, backend, resolved arguments."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.engine.logline import LogLine
from autotune.engine.redaction import REDACTED, redact

_MAX_CONFIG_CHARS = 12_000
_SECRET = re.compile(r"(?:api_key|_token|^token|secret|password)s?$")


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Figures of one start; None or empty where the engine did not say. GiB are 2^30 bytes, per device.

    Of several workers the largest use and the smallest cache count: they are what limits.

    Attributes:
        weights_gib: weights on the device.
        consumed_gib: weights and non-torch memory together, where vLLM (from 0.32) gives only the sum.
        peak_activation_gib: peak of the profile run.
        non_torch_gib: NCCL, CUDA context and the like.
        cuda_graph_gib: captured graphs.
        available_kv_gib: what is left for the KV cache.
        kv_cache_tokens: its size in tokens.
        max_concurrency: requests of full length that fit.
        free_gib, total_gib: device memory at the start.
        compile_s: torch.compile, seconds.
        init_s: profile, KV cache and warm-up together, seconds.
        weights_load_s: loading, seconds.
        max_num_batched_tokens, max_model_len: as the engine resolved them.
        async_scheduling: as the engine resolved it.
        requested: the engine's "non-default args", redacted, in its order.
        resolved: simple settings of its "Initializing a V1 LLM engine ... with config" line, redacted.
        engine_config: that line's text, redacted, at most 12,000 characters.
    """

    weights_gib: float | None = None
    consumed_gib: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graph_gib: float | None = None
    available_kv_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    free_gib: float | None = None
    total_gib: float | None = None
    compile_s: float | None = None
    init_s: float | None = None
    weights_load_s: float | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    async_scheduling: bool | None = None
    vllm_version: str = ""
    architecture: str = ""
    attention_backend: str = ""
    model_runner: str = ""
    requested: tuple[tuple[str, str], ...] = ()
    resolved: tuple[tuple[str, str], ...] = ()
    engine_config: str = ""

    def resolved_value(self, name: str) -> str | None:
        """The engine's own word for a setting (as it prints it), or None where it does not say."""
        return dict(self.resolved).get(name)


# Name of the fact, pattern with one group, and how several workers add up.
_FIGURES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (name, re.compile(pattern), rule)
    for name, pattern, rule in (
        ("weights_gib", r"^(?:Model loading|Loading model weights|Loading weights) took ([\d.]+) (?:GiB|GB)\b", "max"),
        ("weights_gib", r"Actual usage is ([\d.]+) GiB for weight\b", "max"),
        ("weights_load_s", r"^Model loading took .*?(?:and )([\d.]+) seconds", "max"),
        ("weights_load_s", r"^Loading weights took ([\d.]+) seconds", "max"),
        ("consumed_gib", r"Actual usage is ([\d.]+) GiB for consumed memory", "max"),
        ("peak_activation_gib", r"([\d.]+) GiB for peak activation", "max"),
        ("non_torch_gib", r"([\d.]+) GiB for non-torch memory", "max"),
        ("cuda_graph_gib", r"([\d.]+) GiB for CUDAGraph memory", "max"),
        ("cuda_graph_gib", r"^Graph capturing finished in .*took ([\d.]+) GiB", "max"),
        ("available_kv_gib", r"^Available KV cache memory: (-?[\d.]+) GiB", "min"),
        ("available_kv_gib", r"^Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", "min"),
        ("available_kv_gib", r"^(?:Auto )?[Ss]et \(([\d.]+)/[\d.]+\) GiB for KV cache", "min"),
        ("kv_cache_tokens", r"^\w+ KV cache size: ([\d,]+) tokens", "min"),
        ("max_concurrency", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", "min"),
        ("free_gib", r"^Free memory on device .*?\(([\d.]+)/[\d.]+ GiB\) on startup", "min"),
        ("total_gib", r"^Free memory on device .*?\([\d.]+/([\d.]+) GiB\) on startup", "min"),
        ("compile_s", r"^torch\.compile (?:took|takes) ([\d.]+) s in total", "max"),
        ("init_s", r"^init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s", "max"),
        ("max_num_batched_tokens", r"^Chunked prefill is enabled with max_num_batched_tokens=(\d+)", "last"),
        ("max_model_len", r"^Using max model len (\d+)", "last"),
    )
)
_INTEGERS = frozenset({"kv_cache_tokens", "max_num_batched_tokens", "max_model_len"})
_TEXTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "vllm_version",
        re.compile(r"(?:^Initializing an? (?:V1 )?LLM engine \(v|█\s+version |vLLM API server version )([\w.+-]+)"),
    ),
    ("architecture", re.compile(r"^Resolved architecture: (\w+)")),
    ("attention_backend", re.compile(r"^Using (\w+) attention backend\b")),
    ("attention_backend", re.compile(r"^Using (\w+) backend(?: out of potential backends|\.?$)")),
    ("attention_backend", re.compile(r"^Using (Flash ?Attention|Torch SDPA|XFormers|FlashInfer|Triton) backend")),
    ("model_runner", re.compile(r"(?:^Using (V[12]) Model Runner|using the (V[12]) model runner instead)")),
)
_CONFIG = re.compile(r"^Initializing an? (?:V1 )?LLM engine \(v[^)]*\) with config: (.*)")
_SETTING = re.compile(r"(?:^|, )([a-z_]\w*)=('[^']*'|[^\s,(){}\[\]<>]+)(?=,|$)")
# A line without any of these says nothing about the engine; looking for them is cheap.
_KEYWORDS: tuple[str, ...] = (
    *("took", "takes", "GiB", "Using ", "using the ", "KV cache", "config", "version", "args", "architecture"),
    *("scheduling", "prefill", "len ", "concurrency"),
)


@dataclass(slots=True)
class FactReader:
    """Collects `StartFacts` from parsed lines."""

    facts: StartFacts = field(default_factory=StartFacts)

    def feed(self, line: LogLine) -> None:
        """Take in one line; lines that say nothing cost next to nothing."""
        text = line.text
        if line.level in ("ERROR", "CRITICAL") or not any(word in text for word in _KEYWORDS):
            return
        for name, pattern, rule in _FIGURES:
            if found := pattern.search(text):
                self._figure(name, found[1], rule)
        for name, pattern in _TEXTS:
            if (found := pattern.search(text)) and not getattr(self.facts, name):
                self._set(name, next(group for group in found.groups() if group))
        self._settings(text)

    def _settings(self, text: str) -> None:
        if text.startswith("non-default args: ") and not self.facts.requested:
            self._set("requested", _arguments(text.removeprefix("non-default args: ")))
        elif (found := _CONFIG.match(text)) and not self.facts.engine_config:
            config = redact(found[1][:_MAX_CONFIG_CHARS])
            self._set("engine_config", config)
            pairs: dict[str, str] = {}
            for setting in _SETTING.finditer(_top_level(config)):
                pairs.setdefault(setting[1], setting[2].strip("'"))
            self._set("resolved", tuple(pairs.items()))
        elif found := re.match(r"^Asynchronous scheduling is (enabled|disabled)", text):
            self._set("async_scheduling", found[1] == "enabled")

    def _figure(self, name: str, raw: str, rule: str) -> None:
        try:
            value = float(raw.replace(",", ""))
        except ValueError:
            return
        old = getattr(self.facts, name)
        if old is not None and rule in ("min", "max"):
            value = min(old, value) if rule == "min" else max(old, value)
        self._set(name, int(value) if name in _INTEGERS else value)

    def _set(self, name: str, value: object) -> None:
        change: dict[str, Any] = {name: value}  # the patterns above say which type belongs to which name
        self.facts = replace(self.facts, **change)


def _arguments(text: str) -> tuple[tuple[str, str], ...]:
    """The printed dictionary as pairs; empty where the line was cut."""
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    if not isinstance(parsed, dict):
        return ()
    pairs = ((str(name), str(value)) for name, value in parsed.items())
    return tuple((name, REDACTED if _SECRET.search(name) else redact(value)) for name, value in pairs)


def _top_level(config: str) -> str:
    """The text without what stands in brackets, so that a nested ``mode=`` is not taken for a setting."""
    kept: list[str] = []
    depth = 0
    for char in config:
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(char)
    return "".join(kept)
