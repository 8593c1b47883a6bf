"""Random configurations, judged by the preflight and by the simulator's own model of a start.

    python -m benchmarks.preflight.agreement [--count 2000] [--seed 1]

Three populations: `any` (whatever can be written, mostly illegal), `legal` (breaks no rule, so that only memory
decides) and `space` (points of the shipped spaces, which is what a study meets). Each from the formulas alone, and with
a calibration by every good start. The memory constants of both sides were fitted to the same start logs, so this shows
order and margins, not the constants: those are held to the logs by the tests.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from autotune.engine.startfacts import StartFacts
from autotune.preflight.cards import card_facts
from autotune.preflight.rules import CHECKS
from autotune.preflight.simulated import facts_of_shape
from autotune.preflight.study import StudyPreflight
from autotune.simulator.arguments import parse
from autotune.simulator.config import EngineSettings, resolve
from autotune.simulator.failures import ConfigRefusal, EngineFailure
from autotune.simulator.memory import MemoryPlan, plan
from autotune.simulator.shapes import load_shape
from autotune.space.argv import to_argv
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.space.space import SearchSpace

MODELS = (
    "glm-4-9b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama-3.1-8b", "llama-3.3-70b",
    "mixtral-8x7b", "smollm2-135m",
)  # fmt: skip
POPULATIONS = ("any", "legal", "space")
CARDS = ("h100", "h200", "a100", "l4")


@dataclass
class Agreement:
    """How the two judged. `missed` and `false` count by the simulator's phase and by our rule."""

    crashes: int = 0
    caught: int = 0
    good: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.caught / self.crashes

    def __str__(self) -> str:
        tokens = ""
        if self.errors:
            off = [abs(error) for error in self.errors]
            tokens = f"; predicted KV tokens off by {statistics.median(off):.2%} (median), at most {max(off):.2%}"
        return (
            f"{self.crashes} crashes, {self.caught} refused before the start (recall {self.recall:.1%}); "
            f"{self.good} good starts, {len(self.false)} refused falsely; missed by phase {dict(self.missed)}{tokens}"
        )


def random_config(rng: random.Random) -> EngineConfig:
    """Any configuration, many of them illegal or too large."""
    args: dict[str, object] = {
        "tensor_parallel_size": rng.choice([1, 1, 1, 2, 3, 4, 6, 8]),
        "pipeline_parallel_size": rng.choice([None, None, None, 2]),
        "data_parallel_size": rng.choice([None, None, None, 2]),
        "enable_expert_parallel": rng.choice([None, None, True]),
        "gpu_memory_utilization": rng.choice([None, 0.3, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0]),
        "max_num_seqs": rng.choice([None, 16, 64, 256, 1024, 2048, 4096]),
        "max_num_batched_tokens": rng.choice([None, 512, 2048, 8192, 16384, 32768, 65536, 131072]),
        "max_model_len": rng.choice([None, 2048, 8192, 32768, 40960, 131072]),
        "enable_chunked_prefill": rng.choice([None, None, None, False]),
        "enforce_eager": rng.choice([None, None, None, True]),
        "quantization": rng.choice([None, None, "fp8"]),
        "kv_cache_dtype": rng.choice([None, None, "fp8"]),
        "block_size": rng.choice([None, None, 16, 32, 20]),
        "long_prefill_token_threshold": rng.choice([None, None, 1024, 65536]),
        "max_cudagraph_capture_size": rng.choice([None, None, 2048]),
    }
    return EngineConfig.of(args)


def legal_config(rng: random.Random, preflight: StudyPreflight) -> EngineConfig:
    """One that breaks no rule, so that only its memory decides."""
    while True:
        config = random_config(rng)
        if not any(refusal.rule in CHECKS for refusal in preflight.refusals(config)):
            return config


def simulate(model: str, config: EngineConfig, card: str, gpus: int) -> tuple[EngineSettings, MemoryPlan] | str:
    """What the simulator makes of it: its memory, or the phase in which it fails."""
    try:
        settings = resolve(parse([model, *to_argv(config)]), card, gpus)
        return settings, plan(settings)
    except ConfigRefusal:
        return "config"
    except EngineFailure as failure:
        return failure.phase


def facts_of_start(settings: EngineSettings, memory: MemoryPlan) -> StartFacts:
    """What the log of that start would say."""
    return StartFacts(
        weights_gib=memory.weights_gib,
        peak_activation_gib=memory.activation_gib,
        non_torch_gib=memory.non_torch_gib,
        cuda_graph_gib=memory.graphs_gib,
        available_kv_gib=memory.kv_gib,
        kv_cache_tokens=memory.kv_tokens,
        free_gib=memory.free_at_start_gib,
        total_gib=memory.total_gib,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        compile_s=30.0,
    )


def space_config(rng: random.Random, model: str, card: str, gpus: int) -> EngineConfig:
    """A point of the shipped space for such a model and card that its own relations allow."""
    space = _space(model, card, gpus)
    while True:
        point = {parameter.name: rng.choice(parameter.values) for parameter in space.parameters}
        if not space.violations(point):
            return space.config(space.canonical(point), EngineConfig())


@lru_cache(maxsize=256)
def _space(model: str, card: str, gpus: int) -> SearchSpace:
    facts = facts_of_shape(load_shape(model))
    name = ("h100-moe" if gpus == 1 else "h100-moe-multi-gpu") if facts.is_moe else f"{_DENSE[card]}-dense"
    return load_space(name, SpaceContext(gpus=gpus, model=facts.space_facts, card=card))


_DENSE = {"h100": "h100", "h200": "h100", "a100": "a100", "l4": "l4"}


def compare(count: int, seed: int, *, learn: bool, population: str = "legal") -> Agreement:
    """Judge `count` random configurations.

    Args:
        count: how many.
        seed: of the draws.
        learn: every good start calibrates, as in a study.
        population: `any`, `legal` or `space`.
    """
    rng, result = random.Random(seed), Agreement()
    preflights: dict[tuple[str, str], StudyPreflight] = {}
    for _ in range(count):
        model, card, gpus = rng.choice(MODELS), rng.choice(CARDS), rng.choice([1, 2, 8])
        preflight = preflights.setdefault(
            (model, card),
            StudyPreflight(
                facts_of_shape(load_shape(model)),
                card_facts(card),
                model=model,
                version="0.26.0",
                graphs_reserved=False,  # as the simulator does it
            ),
        )
        preflight.gpus = gpus
        if population == "space":
            config = space_config(rng, model, card, gpus)
        else:
            config = legal_config(rng, preflight) if population == "legal" else random_config(rng)
        refused = preflight.refuse(config)
        truth = simulate(model, config, card, gpus)
        if isinstance(truth, str):
            result.crashes += 1
            result.caught += refused is not None
            result.missed[truth] += refused is None
            continue
        result.good += 1
        if refused is not None:
            result.false.append(f"{model} {card} x{gpus} {dict(config.args)}: {refused.reason}")
        budget = preflight.budget(config)
        if learn and budget is not None:
            serving = budget.serving
            seen = {(sample.layout, sample.weight_format) for sample in preflight.calibration.samples}
            if (str(serving.layout), serving.weight_format) in seen:
                result.errors.append(budget.kv_cache_tokens / truth[1].kv_tokens - 1)
            preflight.learn_facts(config, facts_of_start(*truth))
    return result


def main() -> None:
    """Print one line a population, with and without calibration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="configurations of each population")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--population", choices=POPULATIONS, help="only this one")
    wanted = parser.parse_args()
    for population in [wanted.population] if wanted.population else POPULATIONS:
        for learn in (False, True):
            found = compare(wanted.count, wanted.seed, learn=learn, population=population)
            print(f"{population:6} {'calibrated' if learn else 'formulas':10} {found}", flush=True)
            for sentence in found.false[:5]:
                print(f"    refused falsely: {sentence}", flush=True)


if __name__ == "__main__":
    main()
