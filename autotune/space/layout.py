"""How a model is spread over GPUs: tensor, data, pipeline and expert parallel as one value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autotune.errors import SpecError
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.study import LayoutSpec

_PART = re.compile(r"(tp|dp|pp)([1-9][0-9]*)|(ep)")


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout. `str` gives its name (`tp4-dp2-ep`), `Layout.parse` reads it."""

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: bool = False

    @property
    def gpus(self) -> int:
        """GPUs (or CPU ranks) that it takes."""
        return self.tensor * self.data * self.pipeline

    @property
    def args(self) -> dict[str, FrozenValue]:
        """vLLM's arguments; None (not given) where the value is vLLM's default."""
        return {
            "tensor_parallel_size": self.tensor if self.tensor > 1 else None,
            "data_parallel_size": self.data if self.data > 1 else None,
            "pipeline_parallel_size": self.pipeline if self.pipeline > 1 else None,
            "enable_expert_parallel": True if self.expert else None,
        }

    @property
    def facts(self) -> dict[str, FrozenValue]:
        """The same for expressions: defaults are spelled out."""
        return {
            "tensor_parallel_size": self.tensor,
            "data_parallel_size": self.data,
            "pipeline_parallel_size": self.pipeline,
            "enable_expert_parallel": self.expert,
            "gpus_used": self.gpus,
        }

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read a name such as `tp4-dp2-ep`; parts may come in any order and be left out.

        Raises:
            SpecError: the text is no layout.
        """
        found: dict[str, int] = {}
        for part in text.split("-"):
            match = _PART.fullmatch(part)
            key = (match.group(1) or "ep") if match else ""
            if match is None or key in found:
                raise SpecError(f"{text!r} is no layout", hint="Write tp4, tp4-dp2, tp2-dp4-ep or tp4-dp1-pp2.")
            found[key] = int(match.group(2) or 1)
        return cls(found.get("tp", 1), found.get("dp", 1), found.get("pp", 1), "ep" in found)

    @classmethod
    def of(cls, config: EngineConfig) -> Layout:
        """The layout that a configuration asks for."""

        def size(name: str) -> int:
            value = config.get(name, 1)
            return value if isinstance(value, int) and value > 0 else 1

        return cls(
            size("tensor_parallel_size"),
            size("data_parallel_size"),
            size("pipeline_parallel_size"),
            config.get("enable_expert_parallel") is True,
        )

    def __str__(self) -> str:
        pipeline = f"-pp{self.pipeline}" if self.pipeline > 1 else ""
        return f"tp{self.tensor}-dp{self.data}{pipeline}{'-ep' if self.expert else ''}"


def layouts(spec: LayoutSpec, gpus: int, facts: Mapping[str, FrozenValue]) -> tuple[Layout, ...]:
    """Every legal layout for `gpus` GPUs, smallest first. With 0 GPUs (CPU ranks) the sizes named in `spec` are taken.

    Args:
        spec: allowed sizes.
        gpus: GPUs that a trial may use.
        facts: what is known of the model by dotted name (`model.num_attention_heads`, ...); what is missing allows all.
    """
    experts = _fact(facts, "model.num_experts")
    both = [False, True] if experts else [False]
    expert_options = spec.expert_parallel if spec.expert_parallel is not None else both
    found = {
        layout
        for tensor in spec.tensor_parallel or _powers(gpus)
        for pipeline in spec.pipeline_parallel or [1]
        for data in spec.data_parallel or _left(gpus, tensor * pipeline)
        for expert in expert_options
        if _fits(layout := Layout(tensor, data, pipeline, expert), gpus, facts)
    }
    if spec.use_all_gpus and gpus:
        found = {layout for layout in found if layout.gpus == gpus}
    return tuple(sorted(found, key=lambda item: (item.gpus, item.tensor, item.pipeline, item.data, item.expert)))


def _powers(most: int) -> list[int]:
    return [2**power for power in range(max(most, 1).bit_length())]


def _left(gpus: int, used: int) -> Iterable[int]:
    left = gpus // used
    return sorted({*_powers(left), max(left, 1)})


def _fact(facts: Mapping[str, FrozenValue], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _fits(layout: Layout, gpus: int, facts: Mapping[str, FrozenValue]) -> bool:
    """Divisibility as vLLM checks it (`ModelConfig.verify_with_parallel_config`, `FusedMoE`)."""
    if gpus and layout.gpus > gpus:
        return False
    heads, kv_heads = _fact(facts, "model.num_attention_heads"), _fact(facts, "model.num_key_value_heads")
    if heads and heads % layout.tensor:
        return False
    # Fewer KV heads than ranks are replicated, which needs whole copies.
    if kv_heads and kv_heads % layout.tensor and layout.tensor % kv_heads:
        return False
    depth = _fact(facts, "model.num_hidden_layers")
    if depth and layout.pipeline > depth:
        return False
    return _experts_fit(layout, facts)


def _experts_fit(layout: Layout, facts: Mapping[str, FrozenValue]) -> bool:
    experts = _fact(facts, "model.num_experts")
    ranks = layout.tensor * layout.data
    if layout.expert:
        # With one rank expert parallel is the same as without.
        return experts > 0 and ranks > 1 and experts % ranks == 0
    width = _fact(facts, "model.moe_intermediate_size")
    # Without expert parallel the experts are cut over all tensor and data parallel ranks.
    return not (experts and width and width % ranks)
