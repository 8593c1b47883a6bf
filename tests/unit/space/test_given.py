"""What only vLLM's arguments, the spaces or the simulator tell wrong: it is named with file, line and key as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli.validate import validate
from autotune.errors import SpecError, SpecErrors
from autotune.space.arguments import bundled_table
from autotune.space.given import check_given
from autotune.spec.load import load_study

STUDY = """\
name: chat
model: llama-3.1-8b
engine:
  kind: simulated
  args: {max_model_len: 8192, swap-space: 4}
  simulate: {card: h100}
baseline:
  args:
    max-num-seqs: 64
    compilation_config: {cudagraph_mode: PIECEWISE}
space: h100-dense
confirm:
  against:
    blog post: {args: {enable_prefix_caching: true}}
"""


def written(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in STUDY
    path = folder / "chat.yaml"
    path.write_text(STUDY.replace(old, new))
    return path


def test_arguments_that_vllm_has_or_had_are_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validate(written(tmp_path))
    assert "is a valid study" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("max-num-seqs", "max-num-seq", ":9: baseline.args.max-num-seq: vLLM 0.32.0 has no", "mean max_num_seqs?"),
        ("64", "lots", ":9: baseline.args.max-num-seqs: max_num_seqs='lots' is no whole number", "Give a whole number"),
        ("swap-space", "swap-spice", ":5: engine.args.swap-spice: vLLM 0.32.0 has no", "vllm serve --help=all"),
        ("caching: true", "caching: hot", ":14: confirm.against.blog post.args.enable_prefix", "true or false"),
        ("h100-dense", "h100-dens", ":11: space: no search space named 'h100-dens'", "Did you mean h100-dense?"),
        ("h100-dense", "{parameters: {max_num_seq: {ladder: [1, 2]}}}", ":11: space.parameters.max_num_seq", "Did you"),
        ("llama-3.1-8b", "llama-3.1-8", ":2: model: the simulator knows no model", "did you mean llama-3.1-8b?"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_line_and_says_what_to_do(tmp_path: Path, old: str, new: str, place: str, hint: str) -> None:
    path = written(tmp_path, old, new)
    with pytest.raises(SpecError) as caught:
        validate(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert hint in str(caught.value) and caught.value.exit_code == 2


def test_what_was_laid_over_the_file_is_named_as_the_place(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^--set baseline\.args\.max_num_sex: baseline\.args\.max_num_sex: vLLM"):
        validate(written(tmp_path), ["baseline.args.max_num_sex=4"])


def test_all_wrong_arguments_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecErrors) as caught:
        check_given(load_study(written(tmp_path), ["baseline.args.a_b=4", "engine.args.c_d=5"]), bundled_table())
    assert [one.key for one in caught.value.errors] == ["engine.args.c_d", "baseline.args.a_b"]
