"""What every exporter has to do, as functions that a test calls with the exporter.

One more exporter is tested with::

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_mine(case):
        case(MyExporter())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.export.secrets import without_secrets
from autotune.export.values import Evidence, Exporter, ExportInput, Measure
from autotune.load.report import Estimate, Level
from autotune.space.config import EngineConfig

SECRET = "hf_" + "s3cr3t" * 4
"""A value that no file may contain."""


def example(*, simulated: bool = False, args: dict[str, object] | None = None) -> ExportInput:
    """A configuration with everything in it that is hard to write down."""
    level = Level("closed", 64)
    config = EngineConfig.of(
        args
        if args is not None
        else {
            "max_num_seqs": 384,
            "max_num_batched_tokens": 6144,
            "gpu_memory_utilization": 0.93,
            "enable_prefix_caching": False,
            "kv_cache_dtype": "fp8",
            "tensor_parallel_size": 2,
            "trust_remote_code": True,
            "cudagraph_capture_sizes": [1, 2, 4, 384],
            "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "pass_config": {"fuse_norm_quant": True}},
            "override_generation_config": {"temperature": 0.6},
            "hf_token": SECRET,
        },
        {"VLLM_LOGGING_LEVEL": "INFO", "HF_TOKEN": SECRET, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
         "ODD": "a b$c%d\"e'f"},
    )  # fmt: skip
    safe, notes = without_secrets(config)
    return ExportInput(
        name="chat-h100",
        model="meta-llama/Llama-3.1-8B-Instruct",
        config=safe,
        baseline=EngineConfig.of({"max_num_seqs": 256}),
        evidence=Evidence(
            study="chat",
            study_file="chat.yaml",
            trials=(7, 31, 33),
            claim="better than what you run today: x1.31 [1.27, 1.35] in output_throughput@last over 3 rounds",
            gains=(("output_throughput@last", 1.31, 1.27, 1.35),),
            measures=(
                Measure("output_throughput", level, Estimate(5200.0, 5100.0, 5300.0, 900)),
                Measure("request_throughput", level, Estimate(40.0, 39.0, 41.0, 900)),
                Measure("ttft_p95_ms", level, Estimate(310.0, 300.0, 322.0, 900)),
                Measure("tpot_p95_ms", level, Estimate(12.0, 11.8, 12.3, 900)),
                Measure("e2e_p95_ms", level, Estimate(2100.0, 2000.0, 2200.0, 900)),
            ),
            quality="quality gate passed, KL 0.004",
            vllm_version="0.32.0",
            hardware="2 x NVIDIA H100 80GB HBM3, driver 570.1",
            date="2026-11-20",
            simulated=simulated,
        ),
        ready_s=95.0,
        notes=notes,
    )


def carries_its_evidence(exporter: Exporter) -> None:
    """Study, trials, interval, quality, version and date stand in the first file, and `simulated` where it was."""
    shown = " ".join(exporter.render(example())[0].text.split())
    for part in ("chat", "7, 31, 33", "1.27", "1.35", "quality gate passed", "0.32.0", "2026-11-20"):
        assert part in shown, f"{exporter.name} does not say {part}"
    assert "SIMULATED" not in shown
    assert "SIMULATED" in exporter.render(example(simulated=True))[0].text


def writes_no_secret(exporter: Exporter) -> None:
    """A secret is named so that it can be given, its value is nowhere."""
    for file in exporter.render(example()):
        assert SECRET not in file.text
    assert "HF_TOKEN" in "".join(file.text for file in exporter.render(example()))


def is_pure(exporter: Exporter) -> None:
    """The same input gives the same files."""
    assert exporter.render(example()) == exporter.render(example())


def writes_every_argument(exporter: Exporter) -> None:
    """Each tuned value stands in the files."""
    text = "".join(file.text for file in exporter.render(example()))
    for value in ("384", "6144", "0.93", "fp8", "FULL_AND_PIECEWISE", "meta-llama/Llama-3.1-8B-Instruct"):
        assert value in text, f"{exporter.name} does not write {value}"


def names_are_files_of_their_own(exporter: Exporter) -> None:
    """Relative paths, each once, text that ends with a new line."""
    files = exporter.render(example())
    assert files
    assert len({file.path for file in files}) == len(files)
    for file in files:
        assert not file.path.is_absolute() and ".." not in file.path.parts
        assert file.text.endswith("\n")


def stands_without_arguments(exporter: Exporter) -> None:
    """vLLM's defaults are a configuration too."""
    empty = replace(example(), config=EngineConfig(), baseline=EngineConfig())
    assert exporter.render(empty)[0].text


def comments_cannot_be_left(exporter: Exporter) -> None:
    """A line break in a sentence does not end the comment."""
    evidence = replace(example().evidence, claim="one\ntwo: [three\n- four", quality="five\n}six")
    exporter_text = exporter.render(replace(example(), evidence=evidence))[0].text
    assert not any(line.startswith(("two", "- four", "}six")) for line in exporter_text.splitlines())


CASES: tuple[Callable[[Exporter], None], ...] = (
    carries_its_evidence,
    writes_no_secret,
    is_pure,
    writes_every_argument,
    names_are_files_of_their_own,
    stands_without_arguments,
    comments_cannot_be_left,
)
