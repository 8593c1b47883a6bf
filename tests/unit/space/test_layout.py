"""Layouts: names, arguments, and which ones fit a model and a number of GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import SpecError
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.space.layout import Layout, layouts
from autotune.spec.study import LayoutSpec, SpaceSpec

SIZES = st.integers(min_value=1, max_value=64)
LAYOUTS = st.builds(Layout, tensor=SIZES, data=SIZES, pipeline=SIZES, expert=st.booleans())


@given(LAYOUTS)
def test_a_name_is_read_back(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@given(LAYOUTS)
def test_a_configuration_gives_its_layout_back(layout: Layout) -> None:
    assert Layout.of(EngineConfig.of(layout.args)) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [("tp4", Layout(4)), ("ep-tp2-dp4", Layout(2, 4, 1, True)), ("tp8-pp2", Layout(8, 1, 2)), ("dp2", Layout(1, 2))],
)
def test_parts_may_be_left_out(text: str, layout: Layout) -> None:
    assert Layout.parse(text) == layout


@pytest.mark.parametrize("text", ["", "tp0", "tp-2", "xp4", "tp2-tp4", "tp4 dp2", "4"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="no layout"):
        Layout.parse(text)


def names(gpus: int, facts: dict[str, int], **sizes: object) -> set[str]:
    dotted = {f"model.{name}": value for name, value in facts.items()}
    return {str(layout) for layout in layouts(LayoutSpec(**sizes), gpus, dotted)}  # type: ignore[arg-type]


def test_a_dense_model_on_four_gpus() -> None:
    assert names(4, {"num_attention_heads": 32}) == {"tp1-dp1", "tp1-dp2", "tp2-dp1", "tp1-dp4", "tp2-dp2", "tp4-dp1"}


def test_heads_must_divide() -> None:
    assert names(2, {"num_attention_heads": 9, "num_key_value_heads": 3}) == {"tp1-dp1", "tp1-dp2"}


def test_few_key_value_heads_are_copied_where_they_fit() -> None:
    facts = {"num_attention_heads": 32, "num_key_value_heads": 2}
    assert "tp8-dp1" in names(8, facts)
    assert "tp4-dp1" not in names(8, {"num_attention_heads": 32, "num_key_value_heads": 6})


def test_experts_bring_expert_parallel_and_must_divide() -> None:
    facts = {"num_attention_heads": 64, "num_experts": 6, "moe_intermediate_size": 1536}
    found = names(4, facts)
    assert "tp2-dp1-ep" in found
    assert "tp4-dp1-ep" not in found
    assert "tp1-dp1-ep" not in found


def test_experts_that_cannot_be_cut_leave_only_expert_parallel() -> None:
    found = names(4, {"num_attention_heads": 64, "num_experts": 8, "moe_intermediate_size": 770})
    assert "tp4-dp1" not in found
    assert "tp4-dp1-ep" in found


def test_idle_gpus_can_be_forbidden_and_sizes_given() -> None:
    assert names(8, {}, use_all_gpus=True) == {"tp1-dp8", "tp2-dp4", "tp4-dp2", "tp8-dp1"}
    assert names(16, {}, tensor_parallel=[8], pipeline_parallel=[2], data_parallel=[1]) == {"tp8-dp1-pp2"}


def test_cpu_ranks_are_only_what_is_asked_for() -> None:
    assert names(0, {}) == {"tp1-dp1"}
    assert names(0, {}, tensor_parallel=[1, 2], data_parallel=[1]) == {"tp1-dp1", "tp2-dp1"}


@given(st.integers(1, 16), st.integers(1, 128), st.integers(0, 256))
def test_every_layout_fits(gpus: int, heads: int, experts: int) -> None:
    facts = {"model.num_attention_heads": heads, "model.num_experts": experts}
    found = layouts(LayoutSpec(), gpus, facts)
    assert Layout() in found
    for layout in found:
        assert layout.gpus <= gpus
        assert heads % layout.tensor == 0
        assert not layout.expert or experts % layout.gpus == 0


def test_balanced_experts_and_their_transport_are_part_of_a_layout() -> None:
    layout = Layout.parse("tp1-dp8-ep-eplb-a2a=deepep_low_latency")
    assert layout == Layout(1, 8, 1, True, True, "deepep_low_latency")
    assert str(layout) == "tp1-dp8-ep-eplb-a2a=deepep_low_latency"
    config = EngineConfig.of(layout.args)
    assert dict(config.args) == {
        "data_parallel_size": 8, "enable_expert_parallel": True, "enable_eplb": True,
        "all2all_backend": "deepep_low_latency",
    }  # fmt: skip
    assert Layout.of(config) == layout


def test_balancing_and_transport_are_tried_only_where_experts_are_spread() -> None:
    facts = {"model.num_attention_heads": 32, "model.num_experts": 128, "model.moe_intermediate_size": 768}
    spec = LayoutSpec(expert_balancing=[False, True], all_to_all=["deepep_high_throughput"])
    found = {str(layout) for layout in layouts(spec, 2, facts)}
    assert found == {
        "tp1-dp1", "tp1-dp2", "tp2-dp1", "tp1-dp2-ep", "tp1-dp2-ep-eplb", "tp1-dp2-ep-a2a=deepep_high_throughput",
        "tp1-dp2-ep-eplb-a2a=deepep_high_throughput", "tp2-dp1-ep", "tp2-dp1-ep-eplb",
    }  # fmt: skip
    plain = {str(layout) for layout in layouts(LayoutSpec(), 2, facts)}
    assert plain == {"tp1-dp1", "tp1-dp2", "tp2-dp1", "tp1-dp2-ep", "tp2-dp1-ep"}


def test_a_space_with_settings_of_its_own_for_experts_keeps_them_apart_from_the_layout() -> None:
    """As in the shipped space: EPLB and the backend are parameters there, and the layout leaves them alone."""
    facts = SpaceContext(gpus=2, model={"num_attention_heads": 32, "num_experts": 128, "moe_intermediate_size": 768})
    own = {"layout": {"layout": {}}, "enable_eplb": {"switch": True, "when": "enable_expert_parallel"}}
    space = load_space(SpaceSpec.model_validate({"parameters": own}), facts)
    for eplb in (False, True):
        point = {"layout": "tp2-dp1-ep", "enable_eplb": eplb}
        config = space.config(point, EngineConfig())
        assert config.get("enable_eplb") is eplb
        assert space.point_of(config) == point
    together = {"layout": {"layout": {"expert_balancing": [False, True]}}, "max_num_seqs": {"ladder": [8, 64]}}
    space = load_space(SpaceSpec.model_validate({"parameters": together}), facts)
    balanced = EngineConfig.of({"enable_eplb": True, "all2all_backend": "deepep_low_latency"})
    plain = space.config({"layout": "tp2-dp1-ep", "max_num_seqs": 8}, balanced)
    assert plain.get("enable_eplb") is None, "the layout says so"
    assert plain.get("all2all_backend") == "deepep_low_latency", "the layout says nothing of it"
    assert space.point_of(plain) == {"layout": "tp2-dp1-ep", "max_num_seqs": 8}
