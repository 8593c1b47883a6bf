"""The preflight of a study, its host checks and its plan."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.plan import make_plan, plan
from autotune.engine.protocol import Phase, Resolved
from autotune.errors import SpecError
from autotune.host.gpus import Gpu, GpuHost
from autotune.preflight.expense import expense, prior_seconds
from autotune.preflight.host_rules import HostFacts, check_host, read_host
from autotune.preflight.model import facts_of, read_model
from autotune.preflight.simulated import facts_by_name
from autotune.preflight.study import StudyPreflight, preflight_for
from autotune.preflight.survey import survey
from autotune.preflight.terms import GIB
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.study import open_study

from .conftest import DATA

ROOT = DATA.parents[1]
SPEC = StudySpec.model_validate({
    "name": "s", "model": "glm-4-9b", "hardware": {"gpus": 1},
    "engine": {"kind": "simulated", "simulate": {"card": "h200"}},
})  # fmt: skip


class Running:
    """An engine that is known by its log alone."""

    url, api_key, served_model, time_scale = "http://127.0.0.1:1", "", "m", 1.0
    phases: tuple[Phase, ...] = ()

    def __init__(self, log: Path | None, tokens: int = 0) -> None:
        self.log = log
        self.resolved = Resolved(kv_cache_tokens=tokens)


@pytest.fixture
def judge() -> StudyPreflight:
    return preflight_for(SPEC, facts_by_name("glm-4-9b"), None, None)


def test_a_study_learns_from_the_log_of_a_running_engine(judge: StudyPreflight) -> None:
    config = EngineConfig.of({"max_model_len": 8192})
    judge.learn(config, Running(DATA / "startlogs" / "startup-h200-0.26.0-default.log"))
    assert len(judge.errors) == 1
    budget = judge.budget(config)
    assert budget is not None and budget.kv_cache_tokens == pytest.approx(2_871_696, rel=0.001)


def test_an_engine_without_a_log_or_with_an_empty_one_teaches_nothing(judge: StudyPreflight, tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("")
    for log in (None, tmp_path / "missing.log", tmp_path / "engine.log"):
        judge.learn(EngineConfig(), Running(log))
    assert judge.errors == ()


def test_the_study_goes_before_what_the_driver_says() -> None:
    gpus = tuple(Gpu(i, f"u{i}", "NVIDIA A100-SXM4-80GB", 80 * GIB, i * GIB) for i in range(4))
    spec = StudySpec.model_validate({"name": "s", "model": "m", "hardware": {"devices": [1, 2]}})
    seen = preflight_for(spec, None, GpuHost(gpus), None)
    assert seen.gpus == 2
    assert seen.gpu is not None and seen.gpu.idle_used == 2 * GIB  # the fuller one counts
    named = StudySpec.model_validate({"name": "s", "model": "m", "hardware": {"card": "h100", "gpus": 8}})
    planned = preflight_for(named, None, GpuHost(gpus), None)
    assert planned.gpus == 8
    assert planned.gpu is not None and planned.gpu.memory_bytes == pytest.approx(79.11 * GIB, rel=0.001)
    assert preflight_for(spec, None, GpuHost(), None).gpu is None


def test_a_card_that_nobody_knows_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text("name: chat\nmodel: Qwen/Qwen3-8B\nhardware:\n  gpus: 1\n  card: h101\n")
    with pytest.raises(SpecError) as caught:
        make_plan(open_study(path), GpuHost())
    assert str(caught.value).startswith(f"{path}:5: hardware.card: the memory of a 'h101' is not known")
    assert "did you mean h100?" in str(caught.value) and "gpu_memory" in str(caught.value)


def test_older_checkpoints_keep_their_quantisation_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 64}))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 128}))
    facts = read_model(tmp_path)
    assert facts is not None
    assert (facts.quantization, facts.weight_bits) == ("gptq", 4)


def test_scaled_positions_lengthen_the_context() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert facts_of({"max_position_embeddings": 32768, "rope_scaling": rope}).longest == 131072
    assert (
        facts_of({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}).longest
        == 131072
    )
    assert facts_of({}).longest == 0


def test_a_survey_counts_what_can_be_tried() -> None:
    space = load_space("h100-dense", SpaceContext(gpus=1, card="l4"))
    facts = facts_by_name("qwen3-8b")
    found = survey(space, EngineConfig(), StudyPreflight(facts, None, 1), frozenset({"max_num_seqs"}), seed=3)
    assert found.sampled
    assert found.admitted + found.ruled_out + found.refused_count == found.looked_at
    assert 0 < found.restart_groups <= found.admitted


def test_hours_follow_from_trials_starts_and_windows() -> None:
    spec = StudySpec.model_validate({
        "name": "s", "model": "m", "load": {"levels": [8, 16], "window": {"duration": 60}},
        "search": {"trials": 10, "sentinel_every": 0, "gpu_hours": 1}, "confirm": {"rounds": 0},
        "quality": {"enabled": False},
    })  # fmt: skip
    restarted = expense(spec, prior_seconds(spec), gpus=4, live=False, rounds=3)
    live = expense(spec, prior_seconds(spec), gpus=4, live=True, rounds=3)
    assert restarted.searching == pytest.approx(11 * (30 + 15 + 2 * (60 + 18)))
    assert live.searching < restarted.searching
    assert restarted.seconds == 900  # one GPU hour of four GPUs
    assert restarted.gpu_hours == pytest.approx(1)
    assert restarted.neighbours == 0


def test_the_climb_to_the_knee_is_part_of_the_hours_once() -> None:
    plain, placed = (
        StudySpec.model_validate({"name": "s", "model": "m", "load": load, "quality": {"enabled": False}})
        for load in ({"levels": [8]}, {"knee": 0.9})
    )
    one, other = (expense(spec, prior_seconds(spec), gpus=1, live=False, rounds=3) for spec in (plain, placed))
    assert other.searching - one.searching == pytest.approx(7 * prior_seconds(plain).measure)
    assert other.confirming == one.confirming


def test_a_limit_of_the_search_does_not_cut_the_confirmation_which_runs_alone() -> None:
    spec = StudySpec.model_validate({
        "name": "s", "model": "m", "hardware": {"gpus": 8, "parallel_trials": 4, "neighbour_check": False},
        "search": {"wall_clock": "1h", "trials": 500}, "confirm": {"rounds": 3, "finalists": 1},
    })  # fmt: skip
    seconds = prior_seconds(spec)
    found = expense(spec, seconds, gpus=2, live=False, rounds=3)
    confirming = 6 * (seconds.start + seconds.measure)
    assert found.seconds == pytest.approx(3600 + confirming)
    assert found.gpu_hours == pytest.approx((3600 * 8 + confirming * 2) / 3600)
    shared = spec.model_copy(update={"hardware": spec.hardware.model_copy(update={"trial_gpus": 4})})
    found = expense(shared, seconds, gpus=4, live=False, rounds=3)
    assert found.gpu_hours == pytest.approx((3600 * 8 + confirming * 4) / 3600), "all eight, however many trials"


def test_the_check_of_neighbours_is_part_of_the_hours() -> None:
    body = {"name": "s", "model": "m", "load": {"levels": [8]}, "quality": {"enabled": False}}
    hardware = {"gpus": 4, "parallel_trials": 4}
    checked, unchecked = (
        expense(spec, prior_seconds(spec), gpus=1, live=False, rounds=3)
        for spec in (
            StudySpec.model_validate({**body, "hardware": {**hardware, "neighbour_check": check}})
            for check in (True, False)
        )
    )
    measure = prior_seconds(StudySpec.model_validate(body)).measure
    assert checked.neighbours == pytest.approx(30 + 7 * measure), "all start once; three rounds of two windows"
    assert checked.seconds - unchecked.seconds == pytest.approx(checked.neighbours)
    assert unchecked.neighbours == 0


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (HostFacts(shm_free=64 * 2**20), [("shm", "error")]),
        (HostFacts(shm_free=512 * 2**20), [("shm", "warning")]),
        (HostFacts(cache_free=GIB, cache="/c"), [("compile_cache", "warning")]),
        (HostFacts(open_files=(1024, 65536)), [("open_files", "warning")]),
        (HostFacts(memory_available=GIB), [("host_memory", "warning")]),
        (HostFacts(gpu_used=((0, 21 * GIB), (1, GIB))), [("gpu_memory", "error")]),
        (HostFacts(64 * GIB, 8 * GIB, 100 * GIB, "/c", (65536, 65536)), []),
        (HostFacts(), []),
    ],
)
def test_what_the_host_lacks(facts: HostFacts, found: list[tuple[str, str]]) -> None:
    seen = check_host(facts, ranks=2, idle={0: GIB, 1: GIB})
    assert [(one.id, one.severity) for one in seen] == found
    assert all(one.fix for one in seen)


def test_the_host_can_be_read() -> None:
    facts = read_host({"VLLM_CACHE_ROOT": "/nowhere/at/all"})
    assert facts.open_files is not None and facts.open_files[0] != 0
    assert facts.cache_free


def run_plan(*arguments: str, state: Path) -> str:
    app = typer.Typer()
    app.command()(plan)
    result = CliRunner(env={"AUTOTUNE_STATE": str(state), "COLUMNS": "160"}).invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_plan_of_the_demo_is_complete_without_a_gpu(tmp_path: Path) -> None:
    study = tmp_path / "demo.yaml"
    study.write_text((ROOT / "studies" / "demo.yaml").read_text())
    text = run_plan(str(study), state=tmp_path)
    for part in ("weights", "KV cache", "largest sequences", "restart groups", "expected: ", "GPU hours"):
        assert part in text
    data = json.loads(run_plan(str(study), "--json", state=tmp_path))
    space = data["space"]
    assert space["looked_at"] == space["admitted"] + space["ruled_out"] + sum(one["count"] for one in space["refused"])
    assert data["memory"]["kv_cache_tokens"] > 100_000
    assert data["baseline_refused"] == []


def test_a_plan_without_the_models_files_says_what_it_rests_on(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    study.write_text(
        "name: s\nmodel: Qwen/Qwen3-235B-A22B-FP8\nhardware: {gpus: 8, card: h100}\nspace: h100-moe-multi-gpu\n"
        "baseline: {args: {tensor_parallel_size: 8}}\n"
    )
    text = run_plan(str(study), state=tmp_path)
    assert "taken from its name" in text
    assert "the baseline cannot start: a rank's share 192" in text
    study.write_text("name: s\nmodel: some/unknown-model\nhardware: {gpus: 1}\n")
    assert "only rules are checked" in run_plan(str(study), state=tmp_path)


def test_a_baseline_that_cannot_start_is_said_in_json(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    study.write_text(
        "name: s\nmodel: qwen3-32b\nengine: {kind: simulated, simulate: {card: l4}}\nhardware: {gpus: 1}\n"
    )
    data = json.loads(run_plan(str(study), "--json", state=tmp_path))
    assert data["baseline_refused"][0]["cause"] == "oom_weights"
    assert data["space"]["admitted"] == 0
