"""Scripts of our own making, read by us and run by bash with a stand-in for vLLM: both must pass on the same words."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.adopt.shell_script import read_script
from autotune.adopt.traced import Traced

BASH = shutil.which("bash")
NAMES = "ABCD"
SCRIPTS = 40
STAND_IN = "vllm() { printf '<%s>' \"$@\"; echo; }\n"
"""Defined inside the script, so that nothing is started."""


class Maker:
    """Makes scripts of what people write; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def word(self) -> str:
        name = self.rng.choice(NAMES)
        return self.rng.choice(
            ["x", "--a", "7", "fp8", "'a b'", f'"v ${name} w"', f"${name}", f"${{{name}:-d e}}", f"${{{name}:+p q}}",
             '"${R[@]}"', "$(( 2 * 3 + 1 ))", f"${{{name}:=z}}"]
        )  # fmt: skip

    def test(self) -> str:
        name = self.rng.choice(NAMES)
        return self.rng.choice(
            [f'[ -n "${name}" ]', f"[[ -z ${name} ]]", f'[ "${name}" = x ]', f"[[ ${name} == 7 && -n $A ]]", "true",
             "false", f'[ "${name}" != fp8 ]']
        )  # fmt: skip

    def statement(self, depth: int) -> str:
        name, simple = self.rng.choice(NAMES), ("set", "append", "call", "and", "or", "array", "export")
        kind = self.rng.choice((*simple, "if", "case", "function", "braces") if depth < 3 else simple[:3])
        line = self.line
        match kind:
            case "set":
                return f'{name}="${self.rng.choice(NAMES)} y"' if self.rng.random() < 0.4 else f"{name}={self.word()}"
            case "append":
                return f"{name}+=' --l 2'"
            case "call":
                return "vllm serve " + " ".join(self.word() for _ in range(self.rng.randint(1, 4)))
            case "and" | "or":
                return f"{self.test()} {'&&' if kind == 'and' else '||'} {name}={self.rng.choice(('x', '7', 'fp8'))}"
            case "array":
                return self.rng.choice(["R=(1 '2 3')", "R+=(4)", f'R+=("${name}")'])
            case "export":
                return f"export {name}=7"
            case "if":
                return (f"if {self.test()}; then\n{self.block(depth + 1)}\nelif {self.test()}; then {line()}\n"
                        f"else\n{self.block(depth + 1)}\nfi")  # fmt: skip
            case "case":
                return f'case "${name}" in\n  x|7) {line()} ;;\n  (f*)\n {line()}\n ;;\n  *) {line()} ;;\nesac'
            case "function":
                return f'f{depth}() {{\n local q=$1; shift\n vllm $q "$@"\n}}\nf{depth} a {self.word()} c'
        return f"{self.test()} && {{ {line()}; {name}=b; }}"

    def line(self) -> str:
        return "; ".join(self.statement(3) for _ in range(self.rng.randint(1, 2)))

    def block(self, depth: int) -> str:
        return "\n".join(self.statement(depth) for _ in range(self.rng.randint(1, 3)))


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_a_script_passes_on_what_bash_passes_on(tmp_path: Path) -> None:
    assert BASH is not None
    compared = 0
    for seed in range(SCRIPTS):
        maker = Maker(seed)
        begin = "\n".join(f"{name}={maker.rng.choice(('', 'x', '7', 'fp8'))}" for name in NAMES)
        script = f'R=()\n{begin}\n{maker.block(0)}\n{maker.block(0)}\nvllm $A "$B" $C ${{D-none}} "${{R[@]}}"\n'
        calls = read_script(Traced.of(script)).calls
        if any(word.missing for call in calls for word in call.words):
            continue  # what is not set stands as it is written, for people
        done = subprocess.run(
            [BASH, "-c", STAND_IN + script], capture_output=True, text=True, check=True, timeout=10, env={},
            cwd=tmp_path,
        )  # fmt: skip
        ours = [
            "".join(f"<{word.plain}>" for word in call.words[1:]) for call in calls if call.words[0].plain == "vllm"
        ]
        assert [line.replace("<>", "") for line in ours] == done.stdout.replace("<>", "").splitlines(), script
        compared += 1
    assert compared > SCRIPTS / 4
