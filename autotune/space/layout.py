"""How a model is spread over GPUs: tensor, data, pipeline and expert parallel as one value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autotune.errors import SpecError
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.space import LINKS
from autotune.spec.study import LayoutSpec

_PART = re.compile(r"(tp|dp|pp)([1-9][0-9]*)|(ep)|(eplb)|a2a=([a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout. `str` gives its name (`tp4-dp2-ep`), `Layout.parse` reads it.

    Attributes:
        tensor, data, pipeline: parallel sizes.
        expert: experts are spread whole over all tensor and data parallel ranks (attention stays data parallel).
        balanced: busy experts get copies (EPLB); only with `expert`.
        all_to_all: how tokens travel to their experts; empty is vLLM's default. Only with `expert` and data parallel.
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: bool = False
    balanced: bool = False
    all_to_all: str = ""

    @property
    def gpus(self) -> int:
        """GPUs (or CPU ranks) that it takes."""
        return self.tensor * self.data * self.pipeline

    @property
    def args(self) -> dict[str, FrozenValue]:
        """vLLM's arguments; None (not given) where a size is vLLM's default. EPLB and the backend only where set."""
        more: dict[str, FrozenValue] = {"enable_eplb": True} if self.balanced else {}
        more |= {"all2all_backend": self.all_to_all} if self.all_to_all else {}
        return {
            "tensor_parallel_size": self.tensor if self.tensor > 1 else None,
            "data_parallel_size": self.data if self.data > 1 else None,
            "pipeline_parallel_size": self.pipeline if self.pipeline > 1 else None,
            "enable_expert_parallel": True if self.expert else None,
            **more,
        }

    @property
    def facts(self) -> dict[str, FrozenValue]:
        """The same for expressions: defaults are spelled out."""
        return {
            "tensor_parallel_size": self.tensor,
            "data_parallel_size": self.data,
            "pipeline_parallel_size": self.pipeline,
            "enable_expert_parallel": self.expert,
            "enable_eplb": self.balanced,
            "all2all_backend": self.all_to_all or None,
            "gpus_used": self.gpus,
        }

    @classmethod
    @lru_cache(maxsize=1024)  # a search reads the same few names some ten thousand times a proposal
    def parse(cls, text: str) -> Layout:
        """Read a name such as `tp4-dp2-ep`; parts may come in any order and be left out.

        Raises:
            SpecError: the text is no layout.
        """
        found: dict[str, str] = {}
        for part in text.split("-"):
            match = _PART.fullmatch(part)
            key = (match[1] or match[3] or match[4] or "a2a") if match else ""
            if match is None or key in found:
                raise SpecError(f"{text!r} is no layout", hint="Write tp4, tp4-dp2, tp2-dp4-ep or tp4-dp1-pp2.")
            found[key] = match[2] or match[5] or ""
        sizes = [int(found.get(key) or 1) for key in ("tp", "dp", "pp")]
        return cls(sizes[0], sizes[1], sizes[2], "ep" in found, "eplb" in found, found.get("a2a", ""))

    @classmethod
    def of(cls, config: EngineConfig) -> Layout:
        """The layout that a configuration asks for."""

        def size(name: str) -> int:
            value = config.get(name, 1)
            return value if isinstance(value, int) and value > 0 else 1

        backend = config.get("all2all_backend")
        return cls(
            size("tensor_parallel_size"),
            size("data_parallel_size"),
            size("pipeline_parallel_size"),
            config.get("enable_expert_parallel") is True,
            config.get("enable_eplb") is True,
            backend if isinstance(backend, str) else "",
        )

    def __str__(self) -> str:
        pipeline = f"-pp{self.pipeline}" if self.pipeline > 1 else ""
        experts = f"{'-ep' if self.expert else ''}{'-eplb' if self.balanced else ''}"
        return f"tp{self.tensor}-dp{self.data}{pipeline}{experts}{f'-a2a={self.all_to_all}' if self.all_to_all else ''}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that a study allows, and why it is left out; an empty reason is a layout that may be tried."""

    layout: Layout
    reason: str = ""


def layouts(
    spec: LayoutSpec, gpus: int, facts: Mapping[str, FrozenValue], links: Mapping[int, str] | None = None
) -> tuple[Layout, ...]:
    """Every legal layout for `gpus` GPUs, smallest first. With 0 GPUs (CPU ranks) the sizes named in `spec` are taken.

    Args:
        spec: allowed sizes.
        gpus: GPUs that a trial may use.
        facts: what is known of the model by dotted name (`model.num_attention_heads`, ...); what is missing allows all.
        links: the slowest link inside a tensor parallel group by its size; what is missing allows all.
    """
    return tuple(found.layout for found in candidates(spec, gpus, facts, links) if not found.reason)


def candidates(
    spec: LayoutSpec, gpus: int, facts: Mapping[str, FrozenValue], links: Mapping[int, str] | None = None
) -> tuple[Candidate, ...]:
    """The same with those that are left out, each with the reason. Arguments as for `layouts`."""
    found = {
        layout
        for tensor in spec.tensor_parallel or _powers(gpus)
        for pipeline in spec.pipeline_parallel or [1]
        for data in spec.data_parallel or _left(gpus, tensor * pipeline)
        for layout in _of_experts(spec, Layout(tensor, data, pipeline), facts)
    }

    def size(item: Layout) -> tuple[int, int, int, int, bool, bool, str]:
        return item.gpus, item.tensor, item.pipeline, item.data, item.expert, item.balanced, item.all_to_all

    return tuple(
        Candidate(layout, _left_out(spec, layout, gpus, facts, links or {})) for layout in sorted(found, key=size)
    )


def _of_experts(spec: LayoutSpec, sizes: Layout, facts: Mapping[str, FrozenValue]) -> Iterator[Layout]:
    """What a size can be with a mixture of experts: without expert parallel, with it, balanced, by each backend."""
    both = [False, True] if _fact(facts, "model.num_experts") else [False]
    for expert in spec.expert_parallel if spec.expert_parallel is not None else both:
        if not expert:
            yield sizes
            continue
        backends = ["", *spec.all_to_all] if sizes.data > 1 else [""]
        for balanced in spec.expert_balancing if sizes.tensor * sizes.data > 1 else [False]:
            for backend in backends:
                yield Layout(sizes.tensor, sizes.data, sizes.pipeline, True, balanced, backend)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(max(most, 1).bit_length())]


def _left(gpus: int, used: int) -> Iterable[int]:
    left = gpus // used
    return sorted({*_powers(left), max(left, 1)})


def _fact(facts: Mapping[str, FrozenValue], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _left_out(
    spec: LayoutSpec, layout: Layout, gpus: int, facts: Mapping[str, FrozenValue], links: Mapping[int, str]
) -> str:
    """Divisibility as vLLM checks it (`ModelConfig.verify_with_parallel_config`, `FusedMoE`), and what is wished."""
    if gpus and layout.gpus > gpus:
        return f"needs {layout.gpus} GPUs of {gpus}"
    heads, kv_heads = _fact(facts, "model.num_attention_heads"), _fact(facts, "model.num_key_value_heads")
    if heads and heads % layout.tensor:
        return f"{heads} attention heads cannot be divided over {layout.tensor} ranks"
    # Fewer KV heads than ranks are replicated, which needs whole copies.
    if kv_heads and kv_heads % layout.tensor and layout.tensor % kv_heads:
        return f"{kv_heads} KV heads can neither be divided over nor copied to {layout.tensor} ranks"
    depth = _fact(facts, "model.num_hidden_layers")
    if depth and layout.pipeline > depth:
        return f"{depth} layers are fewer than {layout.pipeline} pipeline stages"
    link = links.get(layout.tensor, "")
    if link and LINKS.index(link) > LINKS.index(spec.slowest_link):
        return f"{layout.tensor} tensor parallel ranks cross a {link} link, and slowest_link is {spec.slowest_link}"
    if spec.use_all_gpus and gpus and layout.gpus != gpus:
        idle = gpus - layout.gpus
        return f"leaves {idle} GPU{'s' if idle > 1 else ''} idle, and use_all_gpus is set"
    return _experts_left_out(layout, facts)


def _experts_left_out(layout: Layout, facts: Mapping[str, FrozenValue]) -> str:
    experts = _fact(facts, "model.num_experts")
    ranks = layout.tensor * layout.data
    if layout.expert:
        if not experts:
            return "expert parallel needs a model with experts"
        if ranks == 1:
            return "with one rank expert parallel is the same as without"
        return f"{experts} experts cannot be divided over {ranks} ranks" if experts % ranks else ""
    width = _fact(facts, "model.moe_intermediate_size")
    # Without expert parallel the experts are cut over all tensor and data parallel ranks.
    if experts and width and width % ranks:
        return f"an expert's width {width} cannot be divided over {ranks} ranks"
    return ""
