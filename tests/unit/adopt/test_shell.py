"""What a shell would do with a script, read without running it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.adopt.registry import adopt_text
from autotune.adopt.shell_script import read_script
from autotune.adopt.traced import Traced
from autotune.errors import SpecError


def words(script: str, **given_: str) -> list[list[str]]:
    return [[word.plain for word in call.words] for call in read_script(Traced.of(script), given_).calls]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("vllm serve 'a b' \"c d\" e\\ f", [["vllm", "serve", "a b", "c d", "e f"]]),
        ("A=1; vllm serve --x $A", [["vllm", "serve", "--x", "1"]]),
        ("A='1 2'\nvllm serve $A \"$A\"", [["vllm", "serve", "1", "2", "1 2"]]),
        ("vllm serve ${A:-x} ${A:+y} ${B-z}", [["vllm", "serve", "x", "z"]]),
        ("A=(1 '2 3')\nA+=(4)\nvllm \"${A[@]}\"", [["vllm", "1", "2 3", "4"]]),
        ("A='--x 1'\nA+=' --y 2'\nvllm $A", [["vllm", "--x", "1", "--y", "2"]]),
        ("# comment\nvllm \\\n  --x 1 # tail\n", [["vllm", "--x", "1"]]),
        ("if [ -n \"$A\" ]; then\n  B=1\nelse\n  B=2\nfi\nvllm $B", [["vllm", "2"]]),
        ("B=2\nif [[ $B == 2 && -z $A ]]; then B=3; fi; vllm $B", [["vllm", "3"]]),
        ("B=2\nif [ $B -gt 3 ]; then B=4; elif [ $B -eq 2 ]; then B=5; else B=6; fi\nvllm $B", [["vllm", "5"]]),
        ("X=1 vllm serve > log 2>&1 &\nsleep 1", [["vllm", "serve"], ["sleep", "1"]]),
        ("set -- a b\nvllm \"$@\" $1", [["vllm", "a", "b", "a"]]),
        ("vllm '{\"a\": 1}' \"{\\\"b\\\": 2}\"", [["vllm", '{"a": 1}', '{"b": 2}']]),
        (": ${A:=2}\nvllm $A", [[":", "2"], ["vllm", "2"]]),
        ("A=32\nvllm $((A * 1024)) \"$(( ${A} / 2 - 1 ))\" $((A / 3))", [["vllm", "32768", "15", "$((A / 3))"]]),
        ("M=q\ncase \"$M\" in\n  llama*) A=1 ;;\n  (mist*|q) A=2 ;;\n  *) A=3 ;;\nesac\nvllm $A", [["vllm", "2"]]),
        ("case $M in a) A=1;; b)\n ;;\n *) A=3; esac; vllm $A", [["vllm", "3"]]),
        ("case x in x) case y in z) A=1;; esac; B=2;; *) B=3;; esac\nvllm $A $B", [["vllm", "$A", "2"]]),
        ("A=x\n[ -n \"$B\" ] && A+=' y'\n[[ -z $B && $A == x ]] || A+=' z'\nvllm $A", [["vllm", "x"]]),
        ("[ a = b ] && { A=1; B=1; }\n[ a = a ] && { A=2; B=2; }\nvllm $A $B", [["vllm", "2", "2"]]),
        ("A=7\ncase $A in 7) B=1;; f) B=2;; *) B=3;; esac\nvllm $B", [["vllm", "1"]]),
        ("true || A=1\nfalse && A=2\nfalse || A=3\nvllm $A", [["vllm", "3"]]),
        ("cd /x && vllm serve", [["cd", "/x"], ["vllm", "serve"]]),
        ("go() {\n  local m=$1; shift\n  vllm $m \"$@\"\n}\ngo a b c\ngo d", [["vllm", "a", "b", "c"], ["vllm", "d"]]),
        ("function go { vllm $1; go $1; }\ngo a; echo", [["vllm", "a"], ["echo"]]),
        ("never() { vllm x; }\nY=1\necho $Y", [["echo", "1"], ["vllm", "x"]]),
    ],
)  # fmt: skip
def test_words_are_what_a_shell_would_pass(script: str, expected: list[list[str]]) -> None:
    assert words(script) == expected


def test_values_from_outside_win_over_nothing() -> None:
    assert words("vllm --tp $TP", TP="4") == [["vllm", "--tp", "4"]]
    call = read_script(Traced.of("vllm --tp $TP")).calls[0]
    assert call.words[2].missing == ("TP",)


def test_only_what_hangs_on_an_unknown_condition_is_doubtful() -> None:
    script = 'A="--x 1"\nif grep -q a b; then\n  A+=" --y 2"\n  A="$A --z"\nfi\nA+=" --w"\nvllm $A "$A"'
    call = read_script(Traced.of(script)).calls[-1]
    doubtful = [word.plain for word in call.words if not word.certain]
    assert doubtful == ["--y", "2", "--z", "--x 1 --y 2 --z --w"]
    call = read_script(Traced.of("case $(uname) in L*) A=1 ;; *) A=2 ;; esac\nvllm $A")).calls[-1]
    assert [word.certain for word in call.words] == [True, False]
    call = read_script(Traced.of("A=0\ncase x in $(uname)) ;; y) ;; *) A=2 ;; esac\nvllm $A")).calls[-1]
    assert [word.certain for word in call.words] == [True, False]
    calls = read_script(Traced.of("vllm serve a || vllm serve b")).calls
    assert [call.certain for call in calls] == [True, False]


def test_command_substitution_is_not_guessed() -> None:
    call = read_script(Traced.of("vllm --x $(nproc) --y `date`")).calls[0]
    assert [word.unknown for word in call.words] == [False, False, True, False, True]


def test_every_character_knows_where_it_stands() -> None:
    script = "A=256\nvllm serve --max-num-seqs \"$A\" --dtype 'auto'"
    call = read_script(Traced.of(script)).calls[0]
    for word in call.words:
        assert word.text.span is not None
        start, end = word.text.span
        assert script[start:end] == word.plain


@given(st.text(alphabet="ab$'\"\\`(){}[]<>|&;# \n=-1", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_script_breaks_the_reader(script: str) -> None:
    read_script(Traced.of(script))


@given(st.text(alphabet="abc:-{}[]'\"|>&*!%@#, \n\t1$", max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_file_breaks_adoption(text: str) -> None:
    for name in ("a.yaml", "a.sh", "a"):
        try:
            adopt_text(text, Path(name))
        except SpecError as error:
            assert str(error)


def test_wrappers_are_looked_through() -> None:
    for script in (
        "CUDA_VISIBLE_DEVICES=0 nohup python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 8 &",
        "exec uv run vllm serve m --max-num-seqs 8",
        "numactl -N 0 env A=b vllm serve m --max-num-seqs 8",
        "srun bash -c 'exec vllm serve m --max-num-seqs 8'",
        "docker run --rm --gpus all -e A=b vllm/vllm-openai:v0.30.0 --model m --max-num-seqs 8",
        "podman run --entrypoint vllm docker.io/vllm/vllm-openai serve m --max-num-seqs 8",
        "sudo docker run -it --gpus=2 registry.example/ours:1 vllm serve m --max-num-seqs=8",
        "serve() {\n  vllm serve m --max-num-seqs 8\n}\nserve",
    ):
        adopted = adopt_text(script, Path("start.sh"))
        assert (adopted.model, adopted.config.get("max_num_seqs")) == ("m", 8), script


def test_a_secret_on_the_command_line_is_not_kept() -> None:
    adopted = adopt_text(
        "export HF_TOKEN=hf_abcdefghijklmnop\nvllm serve m --api-key sk-0123456789abcdef", Path("a.sh")
    )
    shown = repr(adopted.config)
    assert "abcdefghijklmnop" not in shown
    assert "0123456789abcdef" not in shown
    assert {"HF_TOKEN", "api_key"} <= set(adopted.exposed)


def test_files_without_vllm_say_what_can_be_read() -> None:
    with pytest.raises(SpecError, match="nothing in this file starts vLLM") as caught:
        adopt_text("echo hello\n", Path("a.sh"))
    assert "compose" in str(caught.value)
    with pytest.raises(SpecError, match="no YAML") as caught:
        adopt_text("a: [1\nb: 2\n", Path("a.yaml"))
    assert caught.value.line is not None


def test_a_config_file_beside_the_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("max-num-seqs: 7\ndtype: bfloat16\n")
    script = tmp_path / "start.sh"
    script.write_text("vllm serve m --config conf.yaml --dtype float16\n")
    adopted = adopt_text(script.read_text(), script)
    assert adopted.config.get("max_num_seqs") == 7
    assert adopted.config.get("dtype") == "float16"


def test_a_text_that_is_nested_without_end_is_an_error_of_the_reader() -> None:
    script = "vllm serve m --x " + "${A:-" * 500 + "}" * 500
    with pytest.raises(SpecError, match="nested too deeply"):
        adopt_text(script, Path("a.sh"))
