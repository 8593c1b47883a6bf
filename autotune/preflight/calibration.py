"""What real starts said about memory, and how it corrects the formulas.

One calibration belongs to a card, a model and a vLLM version. Every start adds a sample: the formula's terms beside
the figures of the engine's own log. Of what was seen for the same layout, format and batch the median counts; for
others the formula is shifted or scaled by what the samples differ from it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from autotune.engine.startfacts import StartFacts
from autotune.preflight.settings import Serving
from autotune.preflight.terms import GIB, Terms

MOST_SAMPLES = 32
_WARM_COMPILE_S = 15.0
"""A compile that is shorter than this came from the cache; a cold one leaves a higher peak behind."""
_SMALL = 0.1
_BALANCED = 0.06
"""GiB: four printed figures and a total with one digit add up to no better."""
_BLOCK_DIGITS = 0.005 * GIB
"""The log rounds to a hundredth of a GiB."""


@dataclass(frozen=True, slots=True)
class Margin:
    """By how many bytes predicted terms may be off."""

    weights: float = 0.0
    activations: float = 0.0
    graphs: float = 0.0

    @property
    def profile(self) -> float:
        """Of everything before the KV cache."""
        return self.weights + self.activations

    @property
    def whole(self) -> float:
        """Of everything."""
        return self.weights + self.activations + self.graphs


@dataclass(frozen=True, slots=True)
class Sample:
    """One start. Bytes; None where the engine did not say.

    Attributes:
        layout, weight_format, kv_format, batched, seqs, length: what was asked.
        ladder: captured batch sizes and kinds of graphs.
        weights, activations, non_torch, graphs: as measured.
        left_out: what else the engine kept out of the KV cache (newer versions: an estimate of the graphs).
        total, free: device memory, and what of it was free before anything was loaded.
        available: for the KV cache.
        tokens: its size.
        warm: nothing had to be compiled.
        formula: terms before any correction.
        predicted: tokens that were predicted before this start, 0 for none.
    """

    layout: str
    weight_format: str
    kv_format: str
    batched: int
    seqs: int
    length: int
    ladder: str
    formula: Terms
    weights: float | None = None
    activations: float | None = None
    non_torch: float | None = None
    graphs: float | None = None
    left_out: float | None = None
    total: float | None = None
    free: float | None = None
    available: float | None = None
    tokens: int = 0
    warm: bool = False
    predicted: int = 0

    @property
    def error(self) -> float | None:
        """Share by which the predicted tokens were off; None without a prediction."""
        return self.predicted / self.tokens - 1 if self.predicted and self.tokens else None


@dataclass(frozen=True)
class Calibration:
    """The samples of one key, oldest first."""

    samples: tuple[Sample, ...] = ()

    @property
    def errors(self) -> tuple[float, ...]:
        """Errors of the predicted KV tokens, one a start that was predicted, oldest first."""
        return tuple(error for sample in self.samples if (error := sample.error) is not None)

    def with_start(
        self,
        serving: Serving,
        formula: Terms,
        said: StartFacts,
        *,
        memory: int | None,
        predicted: int = 0,
        graph_estimate: float = 0.0,
    ) -> Calibration:
        """This calibration with one more start.

        Args:
            serving: what was started.
            formula: its terms before correction.
            said: the facts of its log.
            memory: bytes of the card where the log does not say.
            predicted: KV tokens that were predicted for it.
            graph_estimate: GiB that the engine said to expect of graphs.
        """
        sample = _sample(serving, formula, said, memory, predicted, graph_estimate)
        return Calibration((*self.samples, sample)[-MOST_SAMPLES:])

    def corrected(self, serving: Serving, terms: Terms) -> Terms:
        """The terms with everything that the samples know."""
        if not self.samples:
            return terms
        near = self._near(serving)
        return replace(
            terms,
            weights=_exact(near.weights, _weights) or terms.weights * self._weight_ratio(serving),
            activations=max(0.0, terms.activations + _shift(near.activations, _activations)),
            non_torch=_exact(near.layout, _non_torch) or max(0.0, terms.non_torch + _shift(self.samples, _non_torch)),
            graphs=_exact(near.graphs, _graphs) or terms.graphs * _ratio(self.samples, _graphs),
        )

    def kv_scale(self, serving: Serving, terms: Terms) -> float:
        """Real KV bytes of a token over the formula's; 1 where nothing is known."""
        near = [s for s in self.samples if (s.layout, s.kv_format) == (str(serving.layout), serving.kv_format)]
        # Windows and recurrent state count per request, so that only starts of the same length compare.
        if terms.kv_fixed:
            near = [s for s in near if s.length == serving.max_model_len] or near
        scales = [s.available / (s.tokens / s.length * s.formula.request_bytes(s.length))
                  for s in near if s.available and s.tokens and s.length]  # fmt: skip
        return statistics.median(scales) if scales else 1.0

    def left_out(self, terms: Terms) -> float:
        """Bytes that this engine keeps free for graphs out of the KV cache's budget."""
        pairs = [(s.left_out, s.graphs) for s in self.samples if s.left_out is not None]
        if not pairs:
            return 0.0
        share = statistics.median(left / graphs if graphs else 0.0 for left, graphs in pairs)
        return terms.graphs * share if share > 0.3 else statistics.median(left for left, _ in pairs)

    @property
    def free(self) -> float | None:
        """The most device memory that was free before a start, once the engine's own context stood."""
        return max((s.free for s in self.samples if s.free is not None), default=None)

    @property
    def total(self) -> float | None:
        """The card's memory as the engine counts it, which is less than what NVML reports."""
        return max((s.total for s in self.samples if s.total is not None), default=None)

    def margin(self, serving: Serving, terms: Terms) -> Margin | None:
        """Bytes by which the calibrated terms may be off; None where this layout and format were never started."""
        near = self._near(serving)
        if not near.weights:
            return None
        batch_known = any(s.batched == serving.max_num_batched_tokens for s in near.activations)
        return Margin(
            0.1 * GIB + _spread(near.layout, _non_torch),
            0.05 * GIB + _spread(near.activations, _activations) + (0.0 if batch_known else 0.1 * terms.activations),
            _spread(near.graphs, _graphs) if near.graphs else 0.3 * terms.graphs,
        )

    def _weight_ratio(self, serving: Serving) -> float:
        """Correction of weights in another format or layout; between layouts only a small one carries over."""
        same_layout = tuple(s for s in self.samples if s.layout == str(serving.layout))
        if same_layout:
            return _ratio(same_layout, _weights)
        alike = tuple(s for s in self.samples if s.weight_format == serving.weight_format) or self.samples
        ratio = _ratio(alike, _weights)
        return ratio if abs(ratio - 1) <= _SMALL else 1.0

    def _near(self, serving: Serving) -> _Near:
        layout = tuple(s for s in self.samples if s.layout == str(serving.layout))
        weights = tuple(s for s in layout if s.weight_format == serving.weight_format)
        same_batch = tuple(s for s in layout if s.batched == serving.max_num_batched_tokens)
        known = same_batch or layout or self.samples
        # What was started before comes from the compile cache the next time.
        warm = tuple(s for s in known if s.warm) if same_batch else ()
        graphs = tuple(s for s in self.samples if s.ladder == serving.ladder)
        return _Near(layout, weights, warm or known, graphs)

    def to_json(self) -> str:
        """As text."""
        return json.dumps(_SAMPLES.dump_python(self.samples, mode="json"))

    @classmethod
    def from_json(cls, text: str | None) -> Calibration:
        """Read it back; text that is not of this form (an older version's) gives an empty calibration."""
        if not text:
            return cls()
        try:
            return cls(_SAMPLES.validate_json(text))
        except ValidationError:
            return cls()


_SAMPLES: TypeAdapter[tuple[Sample, ...]] = TypeAdapter(tuple[Sample, ...])
_Pair = tuple[float | None, float]
_Reading = Callable[[Sample], _Pair]
"""A term as measured, and by formula."""


@dataclass(frozen=True, slots=True)
class _Near:
    """The samples that are closest to what is asked, by term."""

    layout: tuple[Sample, ...]
    weights: tuple[Sample, ...]
    activations: tuple[Sample, ...]
    graphs: tuple[Sample, ...]


def _weights(sample: Sample) -> _Pair:
    return sample.weights, sample.formula.weights


def _activations(sample: Sample) -> _Pair:
    return sample.activations, sample.formula.activations


def _non_torch(sample: Sample) -> _Pair:
    return sample.non_torch, sample.formula.non_torch


def _graphs(sample: Sample) -> _Pair:
    return sample.graphs, sample.formula.graphs


def _pairs(samples: Iterable[Sample], term: _Reading) -> list[tuple[float, float]]:
    return [(seen, formula) for seen, formula in map(term, samples) if seen is not None]


def _exact(samples: Iterable[Sample], term: _Reading) -> float | None:
    found = [seen for seen, _ in _pairs(samples, term)]
    return statistics.median(found) if found else None


def _ratio(samples: Iterable[Sample], term: _Reading) -> float:
    found = [seen / formula for seen, formula in _pairs(samples, term) if formula > _BLOCK_DIGITS]
    return statistics.median(found) if found else 1.0


def _shift(samples: Iterable[Sample], term: _Reading) -> float:
    found = [seen - formula for seen, formula in _pairs(samples, term)]
    return statistics.median(found) if found else 0.0


def _spread(samples: Iterable[Sample], term: _Reading) -> float:
    found = [seen - formula for seen, formula in _pairs(samples, term)]
    return max(found) - min(found) if found else 0.0


def _sample(
    serving: Serving, formula: Terms, said: StartFacts, memory: int | None, predicted: int, graph_estimate: float
) -> Sample:
    non_torch = said.non_torch_gib
    if non_torch is None and said.consumed_gib is not None and said.weights_gib is not None:
        non_torch = max(0.0, said.consumed_gib - said.weights_gib)
    total = said.total_gib if said.total_gib is not None else (memory / GIB if memory else None)
    left_out, activations = None, said.peak_activation_gib
    known = (total, said.weights_gib, activations, non_torch, said.available_kv_gib)
    if serving.kv_cache_bytes is None and all(value is not None for value in known):
        total_gib, *taken = (value or 0.0 for value in known)
        rest = serving.utilization * total_gib - sum(taken)
        if abs(rest) <= _BALANCED and activations is not None and 0 < graph_estimate < activations:
            # Newer versions count their estimate of the graphs into the peak that they print.
            activations, rest = activations - graph_estimate, graph_estimate
        left_out = rest * GIB if rest > _BALANCED else 0.0
    return Sample(
        layout=str(serving.layout),
        weight_format=serving.weight_format,
        kv_format=serving.kv_format,
        batched=said.max_num_batched_tokens or serving.max_num_batched_tokens,
        seqs=serving.max_num_seqs,
        length=said.max_model_len or serving.max_model_len,
        ladder=serving.ladder,
        formula=formula,
        weights=_bytes(said.weights_gib),
        activations=_bytes(activations),
        non_torch=_bytes(non_torch),
        graphs=_bytes(said.cuda_graph_gib),
        left_out=left_out,
        total=_bytes(said.total_gib),
        free=_bytes(said.free_gib),
        available=float(serving.kv_cache_bytes) if serving.kv_cache_bytes else _bytes(said.available_kv_gib),
        tokens=said.kv_cache_tokens or 0,
        warm=said.compile_s is not None and said.compile_s < _WARM_COMPILE_S,
        predicted=predicted,
    )


def _bytes(gib: float | None) -> float | None:
    return gib * GIB if gib is not None else None
