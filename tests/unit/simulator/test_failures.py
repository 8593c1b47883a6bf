"""What vLLM refuses or fails at, with its texts, its phase and its exit code."""

import pytest

from autotune.engine.failures import FailureClass, Stage, classify
from autotune.simulator.arguments import ArgumentError, parse
from autotune.simulator.config import resolve
from autotune.simulator.core import SimulatedRequest, Workload, simulate
from autotune.simulator.failures import ConfigRefusal, EngineFailure
from autotune.simulator.memory import check_step, plan

from .conftest import serving

REFUSED = [
    ("qwen3-8b --tensor-parallel-size 3", "attention heads (32) must be divisible by tensor parallel size (3)."),
    ("smollm2-135m -tp 2", "Total number of attention heads (9) must be divisible by tensor parallel size (2)."),
    ("qwen3-8b --enable-expert-parallel", "Number of experts in the model must be greater than 0"),
    ("qwen3-8b --max-model-len 99999", "max_model_len (99999) is greater than the derived max_model_len"),
    ("qwen3-8b --max-num-batched-tokens 512 --no-enable-chunked-prefill --max-model-len 2048",
     "max_num_batched_tokens (512) is smaller than max_model_len (2048)."),
    ("qwen3-8b --max-num-batched-tokens 8 --max-num-seqs 64",
     "max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (64)."),
    ("qwen3-8b --gpu-memory-utilization 1.5", "Input should be less than or equal to 1"),
    ("qwen3-8b --gpu-memory-utilization 0", "Input should be greater than 0"),
    ("qwen3-8b --quantization nosuchquant", "Unknown quantization method: nosuchquant. Must be one of"),
    ("qwen3-8b --quantization awq", "Cannot find the config file for awq"),
    ("qwen3-8b --max-num-seqs 0", "Input should be greater than or equal to 1"),
    ("qwen3-8b --max-cudagraph-capture-size 512 --cudagraph-capture-sizes 1 2 256",
     "max_cudagraph_capture_size(=512) should be consistent with the max value of cudagraph_capture_sizes(=256)"),
    ("qwen3-8b -cc.cudagraph_mode=SOMETIMES", "Invalid cudagraph_mode: SOMETIMES"),
    ("qwen3-8b --long-prefill-token-threshold 9000 --max-model-len 4096",
     "long_prefill_token_threshold (9000) cannot be greater than the max_model_len (4096)"),
    ("/no/such/model", "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/no/such/model'"),
]  # fmt: skip

FAILED = [
    ("llama-3.3-70b", "h100", "load", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ("qwen3-8b --max-num-batched-tokens 1M", "h100", "profile", "torch.OutOfMemoryError: CUDA out of memory."),
    ("qwen3-8b --gpu-memory-utilization 0.2", "h100", "kv_init", "No available memory for the cache blocks."),
    ("qwen3-8b --gpu-memory-utilization 0.25", "h100", "kv_init", "is larger than the available KV cache memory"),
    ("qwen3-8b --gpu-memory-utilization 0.999", "h100", "init", "is less than desired GPU memory utilization (0.999,"),
    ("qwen3-8b --kv-cache-memory-bytes 64000M --max-num-seqs 256", "h100", "capture", "torch.OutOfMemoryError"),
    ("qwen3-8b --gpu-memory-utilization 0.985", "h100", "warmup", "when warming up sampler with 1024 dummy requests."),
    ("qwen3-8b --tensor-parallel-size 2", "h100", "init", "world_size (2) is less than than max local gpu count (1)"),
    ("qwen3-8b --block-size 24", "h100", "init", "No common block size for 24"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "text"), REFUSED)
def test_refused_while_the_configuration_is_built(command, text):
    with pytest.raises(ConfigRefusal) as refusal:
        resolve(parse(command.split()), "h100", 8)
    assert text in "\n".join(refusal.value.lines)


@pytest.mark.parametrize(("command", "card", "phase", "text"), FAILED)
def test_failed_in_its_phase(command, card, phase, text):
    with pytest.raises(EngineFailure) as failure:
        plan(resolve(parse(command.split()), card, 1))
    assert failure.value.phase == phase
    assert text in failure.value.error


def test_an_fp8_checkpoint_in_blocks_must_divide(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "hidden_size": 1024,'
        '"num_attention_heads": 16,'
        '"num_key_value_heads": 4, "vocab_size": 32000, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 64,'
        '"moe_intermediate_size": 768, "max_position_embeddings": 4096,'
        '"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}'
    )
    with pytest.raises(EngineFailure, match=r"weight = 96 is not divisible by weight quantization block_n = 128"):
        resolve(parse([str(tmp_path), "--tensor-parallel-size", "8"]), "h100", 8)
    assert resolve(parse([str(tmp_path), "-tp", "2"]), "h100", 8).weight_format == "fp8"


def test_experts_must_divide_among_the_cards():
    with pytest.raises(EngineFailure, match="n_physical_experts=128 must be divisible by ep_size=6"):
        resolve(parse(["qwen3-30b-a3b", "-tp", "2", "-dp", "3", "--enable-expert-parallel"]), "h100", 8)


def test_a_start_that_fits_can_still_die_under_load():
    flags: dict[str, object] = {"model": "qwen3-8b", "gpu_memory_utilization": 0.97, "max_num_batched_tokens": 16384}
    settings = resolve(flags, "h100")
    memory = plan(settings)
    check_step(settings, memory, tokens=16384, samples=256, prompt_logits=0)
    with pytest.raises(EngineFailure) as failure:
        check_step(settings, memory, tokens=16384, samples=1, prompt_logits=16384)
    assert failure.value.phase == "serve"
    assert "CUDA out of memory" in failure.value.error


def test_a_load_that_kills_the_engine_says_so():
    flags = {"model": "qwen3-8b", "max_num_batched_tokens": 40960, "max_num_seqs": 64, "enforce_eager": True}
    tight = resolve({**flags, "kv_cache_memory_bytes": int(60.5 * 2**30)}, "h100")
    assert plan(tight).spare_gib > 0
    with pytest.raises(EngineFailure, match="CUDA out of memory"):
        simulate(tight, Workload((SimulatedRequest(40000, 2),)))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("m --no-such-flag 3", "vllm: error: unrecognized arguments: --no-such-flag 3"),
        ("m --max-num-seqs many", "argument --max-num-seqs: invalid int value: 'many'"),
        ("m --compilation-config {bad", "argument --compilation-config/-cc: 1 validation error"),
        ("m --kv-cache-dtype fp7", "argument --kv-cache-dtype: invalid choice: 'fp7'"),
        ("m --swap-space 4", "unrecognized arguments: --swap-space 4"),
        ("", "a model is required"),
    ],
)
def test_usage_errors_read_like_argparse(words, text):
    with pytest.raises(ArgumentError) as error:
        parse(words.split())
    assert text in str(error.value)


def test_all_spellings_of_an_option_mean_the_same(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model: qwen3-8b\nmax-num-seqs: 64\nenable-prefix-caching: false\ncompilation-config:\n  mode: 3\n")
    assert parse(["--config", str(file)]) == {
        "model_tag": "qwen3-8b", "model": "qwen3-8b", "max_num_seqs": 64, "enable_prefix_caching": False,
        "compilation_config": {"mode": 3},
    }  # fmt: skip
    assert parse(["--config", str(file), "--max-num-seqs", "8"])["max_num_seqs"] == 8
    dashed = parse(["q", "--max-num-seqs=64", "-cc.pass_config.fuse=true"])
    assert dashed == {
        "model_tag": "q",
        "model": "q",
        "max_num_seqs": 64,
        "compilation_config": {"pass_config": {"fuse": True}},
    }
    assert parse(["q", "--max_num_seqs", "64"])["max_num_seqs"] == 64
    assert parse(["q", "--max-model-len", "8k"])["max_model_len"] == 8000
    assert parse(["q", "--max-model-len", "8K"])["max_model_len"] == 8192


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--no-such-flag", "3"], 2, "vllm: error: unrecognized arguments: --no-such-flag 3"),
        (["--tensor-parallel-size", "3"], 1, "must be divisible by tensor parallel size (3)"),
        (["--gpu-memory-utilization", "0.2"], 1, "Engine core initialization failed. See root cause above."),
    ],
)
def test_a_process_that_cannot_start_ends_with_vllms_exit_code(tmp_path, arguments, code, text):
    with serving(tmp_path, *arguments, ready=False) as server:
        assert server.process.wait(20) == code
        assert text in server.text()


@pytest.mark.parametrize(
    ("command", "wanted", "stage"),
    [
        ("llama-3.3-70b", FailureClass.OOM_WEIGHTS, Stage.WEIGHTS),
        ("qwen3-8b --max-num-batched-tokens 1M", FailureClass.OOM_PROFILE_RUN, Stage.PROFILING),
        ("qwen3-8b --gpu-memory-utilization 0.25", FailureClass.KV_CACHE_TOO_SMALL, Stage.KV_CACHE),
        ("qwen3-8b --kv-cache-memory-bytes 64000M --max-num-seqs 256", FailureClass.OOM_GRAPH_CAPTURE, Stage.GRAPHS),
        ("qwen3-8b --gpu-memory-utilization 0.985", FailureClass.OOM_SAMPLER_WARMUP, Stage.WARMUP),
        ("smollm2-135m -tp 2", FailureClass.TP_DIVISIBILITY, Stage.INSPECT),
        ("qwen3-8b --no-such-flag 3", FailureClass.CLI_UNKNOWN_ARGUMENT, Stage.IMPORT),
    ],
)
def test_the_rest_of_the_project_recognises_the_failure(tmp_path, command, wanted, stage):
    model, *arguments = command.split()
    with serving(tmp_path, *arguments, ready=False, model=model) as server:
        code = server.process.wait(20)
        failure = classify(server.log, exit_code=code)
    assert (failure.failure_class, failure.stage) == (wanted, stage)


def test_the_cause_stands_in_the_engine_process_before_the_last_error(tmp_path):
    with serving(tmp_path, "--gpu-memory-utilization", "0.2", ready=False) as server:
        server.process.wait(20)
    lines = [line for line in server.text().splitlines() if "Error" in line]
    assert "EngineCore pid=" in lines[0]
    assert "No available memory for the cache blocks" in lines[0]
    assert lines[-1].startswith("RuntimeError: Engine core initialization failed")
