"""What vLLM refuses whatever the memory: divisibility, scheduler limits, combinations, unknown arguments.

A check gives the values for its sentence in `rules.toml`, or None where the configuration is legal *or could be*.
Sources: `VllmConfig`, `SchedulerConfig`, `ModelConfig.verify_with_parallel_config`, `FusedMoEConfig`,
`fp8_utils.validate_fp8_block_shape` and `SpeculativeConfig` of vLLM 0.26 to 0.32.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from autotune.engine.failure_values import Advice, Direction
from autotune.outcome import Infeasible
from autotune.preflight.images import images_limit, images_model
from autotune.preflight.model import ModelFacts
from autotune.preflight.settings import Serving, nested, size_of
from autotune.space.arguments import ArgumentProblem, ArgumentTable, check_config
from autotune.space.config import EngineConfig
from autotune.space.renames import translate

Values = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Case:
    """What the checks look at.

    Attributes:
        config: complete configuration.
        serving: the same with defaults.
        facts: of the model, None where unknown.
        gpus: of a trial, None where unknown.
        cpu: the CPU engine.
        memory_known: the card is known, and with it vLLM's defaults.
        images: images in a prompt of the load.
    """

    config: EngineConfig
    serving: Serving
    facts: ModelFacts | None = None
    gpus: int | None = None
    cpu: bool = False
    memory_known: bool = False
    images: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a configuration cannot start.

    Attributes:
        rule: name of the rule or of the memory limit.
        cause: class of the failure that is avoided.
        reason: one sentence.
        legal: what would be legal.
        advice: what to do.
        violation: above 0.
    """

    rule: str
    cause: str
    reason: str
    legal: str
    advice: Advice
    violation: float = 1.0

    @property
    def outcome(self) -> Infeasible:
        """As the outcome of a trial that was never started."""
        reason = f"{self.reason}; legal: {self.legal}" if self.legal else self.reason
        return Infeasible(f"refused_{self.cause}", reason, self.violation, advice=(self.advice,), started=False)


@dataclass(frozen=True, slots=True)
class RuleText:
    """The words of a rule."""

    cause: str
    text: str
    legal: str
    parameter: str
    direction: Direction
    advice: str


@lru_cache(maxsize=1)
def rule_texts() -> dict[str, RuleText]:
    """The words of every rule by its name."""
    raw = tomllib.loads((files("autotune.preflight") / "rules.toml").read_text(encoding="utf-8"))
    return {
        name: RuleText(
            row["cause"], row["text"], row["legal"], row["parameter"], Direction(row["direction"]), row["advice"]
        )
        for name, row in raw.items()
    }


def refusal(rule: str, values: Values, *, violation: float = 1.0) -> Refusal:
    """The refusal of a rule with its sentences filled in."""
    words = rule_texts()[rule]
    legal = words.legal.format_map(values)
    advice = Advice(words.parameter.format_map(values), words.direction, words.advice.format_map(values), legal)
    return Refusal(rule, words.cause, words.text.format_map(values), legal, advice, violation)


def check_rules(case: Case, table: ArgumentTable | None = None) -> tuple[Refusal, ...]:
    """Every rule that the configuration breaks, the most telling first; empty where it is legal or could be."""
    found = [refusal(name, values) for name, check in CHECKS.items() if (values := check(case)) is not None]
    if table is not None:
        said, _ = translate(case.config, table.version)
        found += [_unknown(problem) for problem in check_config(said, table) if problem.fatal]
    return tuple(found)


def warnings(config: EngineConfig, table: ArgumentTable) -> tuple[str, ...]:
    """What this vLLM would ignore or call deprecated, in words."""
    return tuple(
        f"{problem.message}. {problem.hint}".strip() for problem in check_config(config, table) if not problem.fatal
    )


def _unknown(problem: ArgumentProblem) -> Refusal:
    return refusal("argument", {"name": problem.name, "message": problem.message, "hint": problem.hint or "–"})


# -- divisibility ------------------------------------------------------------------------------------------------------


def _tp_heads(case: Case) -> Values | None:
    facts, tensor = case.facts, case.serving.layout.tensor
    if facts is None or facts.heads % tensor == 0:
        return None
    return {"heads": facts.heads, "tensor": tensor}


def _tp_kv_heads(case: Case) -> Values | None:
    facts, tensor = case.facts, case.serving.layout.tensor
    if facts is None or facts.is_mla or not facts.kv_heads:
        return None
    if facts.kv_heads % tensor == 0 or tensor % facts.kv_heads == 0:
        return None
    return {"kv_heads": facts.kv_heads, "tensor": tensor}


def _tp_vocabulary(case: Case) -> Values | None:
    facts, tensor = case.facts, case.serving.layout.tensor
    if facts is None or facts.vocabulary <= 1:
        return None
    padded = math.ceil(facts.vocabulary / 64) * 64
    return {"padded": padded, "tensor": tensor} if padded % tensor else None


def _tp_mlp(case: Case) -> Values | None:
    facts, tensor = case.facts, case.serving.layout.tensor
    # Four times the hidden size is also what stands there when the file does not say.
    if facts is None or facts.is_moe or facts.intermediate == 4 * facts.hidden or facts.intermediate % tensor == 0:
        return None
    return {"intermediate": facts.intermediate, "tensor": tensor}


def _expert_ranks(case: Case) -> int:
    """Ranks that an expert is cut over without expert parallel."""
    return case.serving.layout.tensor * case.serving.layout.data


def _moe_width(case: Case) -> Values | None:
    facts, ranks = case.facts, _expert_ranks(case)
    if facts is None or not facts.moe_intermediate or case.serving.layout.expert:
        return None
    return {"width": facts.moe_intermediate, "ranks": ranks} if facts.moe_intermediate % ranks else None


def _ep_needs_experts(case: Case) -> Values | None:
    facts = case.facts
    if facts is None or facts.is_moe or not case.serving.layout.expert:
        return None
    return {"architecture": facts.architecture or "the model"}


def _eplb(case: Case) -> Values | None:
    layout = case.serving.layout
    if not layout.balanced or (layout.expert and layout.tensor * layout.data > 1 and not case.cpu):
        return None
    return {"ranks": layout.tensor * layout.data, "where": "the CPU engine" if case.cpu else "GPUs"}


def _ep_experts(case: Case) -> Values | None:
    facts, ranks = case.facts, _expert_ranks(case)
    if facts is None or not facts.is_moe or not case.serving.layout.expert or facts.experts % ranks == 0:
        return None
    # Most models spread an uneven number of experts; these do not.
    even = facts.architecture.startswith(("DeepseekV4", "KimiK3")) or case.config.get("enable_eplb") is True
    return {"experts": facts.experts, "ranks": ranks} if even or ranks > facts.experts else None


def _fp8_blocks(case: Case) -> Values | None:
    facts, tensor = case.facts, case.serving.layout.tensor
    if facts is None or not facts.quantization_block or facts.weight_bits != 8:
        return None
    block = facts.quantization_block
    widths = [("attention output", facts.heads * (facts.value_head_dim or facts.head_dim), tensor)]
    if facts.is_moe:
        experts = 1 if case.serving.layout.expert else _expert_ranks(case)
        widths = [("expert's width", facts.moe_intermediate, experts), *widths]
    else:
        widths = [("MLP's width", facts.intermediate, tensor), *widths]
    for what, width, ranks in widths:
        if ranks > 1 and width and width % ranks == 0 and (width // ranks) % block:
            return {"what": what, "width": width, "share": width // ranks, "block": block}
    return None


def _world_size(case: Case) -> Values | None:
    layout, config = case.serving.layout, case.config
    elsewhere = (
        config.get("distributed_executor_backend") in ("ray", "external_launcher")
        or (size_of(config.get("nnodes")) or 1) > 1
        or config.get("data_parallel_size_local") is not None
        or config.get("data_parallel_backend") == "ray"
    )
    if case.gpus is None or case.cpu or elsewhere or layout.gpus <= case.gpus:
        return None
    return {"world": layout.gpus, "gpus": case.gpus}


def _pipeline_layers(case: Case) -> Values | None:
    facts, pipeline = case.facts, case.serving.layout.pipeline
    if facts is None or pipeline <= facts.layers or facts.layers <= 1:
        return None
    return {"layers": facts.layers, "pipeline": pipeline}


# -- scheduler ---------------------------------------------------------------------------------------------------------


def _batch_below_seqs(case: Case) -> Values | None:
    s, config = case.serving, case.config
    given, seqs_given = config.get("max_num_batched_tokens") is not None, config.get("max_num_seqs") is not None
    multimodal = case.facts is None or case.facts.multimodal
    sure = seqs_given and (given or (case.memory_known and not multimodal and not config.get("performance_mode")))
    if not sure or s.max_num_batched_tokens >= s.max_num_seqs:
        return None
    return {"batched": s.max_num_batched_tokens, "seqs": s.max_num_seqs}


def _batch_below_length(case: Case) -> Values | None:
    s = case.serving
    # Without a given batch vLLM takes one that is large enough; without the length we do not know it.
    known = case.config.get("max_num_batched_tokens") is not None and (
        size_of(case.config.get("max_model_len")) is not None or _known_length(case.facts)
    )
    if s.chunked_prefill or not known or s.max_num_batched_tokens >= s.max_model_len:
        return None
    return {"batched": s.max_num_batched_tokens, "length": s.max_model_len}


def _long_prefill(case: Case) -> Values | None:
    threshold, length = size_of(case.config.get("long_prefill_token_threshold")), case.serving.max_model_len
    known = size_of(case.config.get("max_model_len")) is not None or _known_length(case.facts)
    if threshold is None or not known or threshold <= length:
        return None
    return {"threshold": threshold, "length": length}


def _active_seqs(case: Case) -> Values | None:
    active = size_of(case.config.get("max_num_active_seqs"))
    if active is None or case.config.get("max_num_seqs") is None or active <= case.serving.max_num_seqs:
        return None
    return {"active": active, "seqs": case.serving.max_num_seqs}


def _known_length(facts: ModelFacts | None) -> bool:
    return facts is not None and facts.longest > 0


def _model_length(case: Case) -> Values | None:
    facts, asked = case.facts, size_of(case.config.get("max_model_len"))
    changed = any(name.startswith(("hf_overrides", "rope_")) for name, _ in case.config.args)
    allowed = dict(case.config.env).get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0")
    if facts is None or not facts.longest or asked is None or changed or allowed or asked <= facts.longest:
        return None
    return {"length": asked, "longest": facts.longest}


def _positive(case: Case) -> Values | None:
    for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size",
                 "data_parallel_size", "block_size"):  # fmt: skip
        value = case.config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            return {"name": name, "value": value}
    return None


def _utilization(case: Case) -> Values | None:
    value = case.config.get("gpu_memory_utilization")
    if not isinstance(value, int | float) or isinstance(value, bool) or 0 < value <= 1:
        return None
    return {"value": value}


# -- backends and combinations ----------------------------------------------------------------------------------------


def _block_size(case: Case) -> Values | None:
    size, facts = size_of(case.config.get("block_size")), case.facts
    # Latent attention and hybrids choose their own size; what they do with another one differs by version.
    if size is None or facts is None or facts.is_mla or facts.is_hybrid or facts.windowed_layers:
        return None
    step = 32 if case.cpu else 16
    examples = "32, 64 or 128" if case.cpu else "16, 32, 64 or 128"
    return {"size": size, "step": step, "examples": examples} if size % step else None


def _kv_e5m2(case: Case) -> Values | None:
    fp8 = "fp8" in (case.config.get("quantization"), case.facts.quantization if case.facts else "")
    return {} if fp8 and case.serving.kv_format == "fp8_e5m2" else None


_FAMILIES = ("fp8", "awq", "gptq", "compressed-tensors", "mxfp4", "bitsandbytes")


def _quantization_mismatch(case: Case) -> Values | None:
    stored, asked = case.facts.quantization if case.facts else "", str(case.config.get("quantization") or "")
    if stored not in _FAMILIES or not asked:
        return None
    # `gptq_marlin`, `awq_marlin`, `deepseek_v4_fp8` and the like are kernels or kinds of the same family.
    return {"stored": stored, "asked": asked} if asked in _FAMILIES and asked != stored else None


def _quantization_absent(case: Case) -> Values | None:
    facts, asked = case.facts, str(case.config.get("quantization") or "")
    needs = ("awq", "awq_marlin", "gptq", "gptq_marlin")
    # Only of files that were read: their size is known then.
    if facts is None or facts.quantization or asked not in needs or not facts.weight_bytes:
        return None
    return {"asked": asked}


def _capture_sizes(case: Case) -> Values | None:
    compilation = nested(case.config, "compilation_config")
    sizes = case.config.get("cudagraph_capture_sizes") or compilation.get("cudagraph_capture_sizes")
    most = case.config.get("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size")
    if case.cpu or not isinstance(sizes, tuple) or not isinstance(most, int) or case.config.get("enforce_eager"):
        return None
    batched = case.config.get("max_num_batched_tokens")
    numbers = [size for size in sizes if isinstance(size, int)]
    largest = max(numbers, default=most)
    unsure = isinstance(batched, int) and largest > batched  # vLLM drops those, what is left decides
    return None if unsure or largest == most else {"most": most, "largest": largest}


def _speculative_model(case: Case) -> Values | None:
    speculative = nested(case.config, "speculative_config")
    method = speculative.get("method")
    needs = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model")
    return {"method": str(method)} if method in needs and not speculative.get("model") else None


def _speculative_tokens(case: Case) -> Values | None:
    count = nested(case.config, "speculative_config").get("num_speculative_tokens")
    return {"count": count} if isinstance(count, int) and not isinstance(count, bool) and count < 1 else None


CHECKS: dict[str, Callable[[Case], Values | None]] = {
    "positive": _positive,
    "utilization": _utilization,
    "world_size": _world_size,
    "tp_heads": _tp_heads,
    "tp_kv_heads": _tp_kv_heads,
    "tp_vocabulary": _tp_vocabulary,
    "tp_mlp": _tp_mlp,
    "pipeline_layers": _pipeline_layers,
    "moe_width": _moe_width,
    "ep_needs_experts": _ep_needs_experts,
    "eplb": _eplb,
    "ep_experts": _ep_experts,
    "fp8_blocks_mlp": _fp8_blocks,
    "batch_below_seqs": _batch_below_seqs,
    "batch_below_length": _batch_below_length,
    "long_prefill": _long_prefill,
    "active_seqs": _active_seqs,
    "model_length": _model_length,
    "block_size": _block_size,
    "kv_e5m2": _kv_e5m2,
    "quantization_mismatch": _quantization_mismatch,
    "quantization_absent": _quantization_absent,
    "capture_sizes": _capture_sizes,
    "speculative_model": _speculative_model,
    "speculative_tokens": _speculative_tokens,
    "images_model": lambda case: images_model(case.images, case.facts),
    "images_limit": lambda case: images_limit(case.images, case.config),
}
"""Every check by the name of its words, the most telling first."""
