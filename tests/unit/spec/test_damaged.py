"""Ten thousand damaged study files: each one loads or is refused with a message, none ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import SpecError, SpecErrors
from autotune.spec.load import load_study

SPECS = Path(__file__).parents[2] / "data" / "specs"
SOURCES = [path.read_bytes() for path in sorted((SPECS / "good").glob("*.yaml"))]
SNIPPETS = [
    b"\t", b"\n", b": ", b"- ", b"{", b"}", b"[", b"]", b"'", b'"', b"#", b"&a ", b"*a", b"<<: *a\n", b"|\n", b">-\n",
    b"? ", b"! ", b"!!int ", b"!!binary x", b"!!set {a}", b"%YAML 1.1\n---\n", b"---\n", b"...\n", b"\x00", b"\xff",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"null", b"true", b"-1", b"1e999", b".nan", b"0x",
    b"9" * 400, b"-.inf", b"1_0", b"2026-11-29", b"500ms", b"5%", b"\\", b"\\x", b"@", b"`", b", ", b"\r", b"\x85",
    b"name: twice\n",
    b"space: {parameters: {a: {ladder: [1]}}}\n", b"load: {input_tokens: {mean: {}}}\n", b"objectives: [{}]\n",
    b"engine: {kind: command, command: {start: []}}\n", b"slos: [{limit: []}]\n", b"hardware: {gpu_memory: 1e309GiB}\n",
]  # fmt: skip
OPERATIONS = st.tuples(
    st.sampled_from(["insert", "delete", "replace", "duplicate line", "drop line", "swap values", "cut", "indent"]),
    st.integers(0, 1 << 16),
    st.integers(0, 1 << 16),
    st.sampled_from(SNIPPETS),
)


def damaged(source: bytes, operations: list[tuple[str, int, int, bytes]]) -> bytes:
    """The file with every operation applied, one after the other."""
    data = source
    for kind, first, second, snippet in operations:
        at = first % (len(data) + 1)
        lines = data.splitlines(keepends=True) or [b""]
        line, other = first % len(lines), second % len(lines)
        if kind == "insert":
            data = data[:at] + snippet + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + 1 + second % 12 :]
        elif kind == "replace":
            data = data[:at] + snippet + data[at + len(snippet) :]
        elif kind == "cut":
            data = data[:at]
        else:
            data = b"".join(_lines_changed(kind, lines, line, other, snippet))
    return data


def _lines_changed(kind: str, lines: list[bytes], line: int, other: int, snippet: bytes) -> list[bytes]:
    if kind == "duplicate line":
        return [*lines[:other], lines[line], *lines[other:]]
    if kind == "drop line":
        return lines[:line] + lines[line + 1 :]
    if kind == "indent":
        return [*lines[:line], b"  " + lines[line], *lines[line + 1 :]]
    key, _, _ = lines[line].partition(b":")
    _, _, value = lines[other].partition(b":")
    return [*lines[:line], key + b": " + (value.strip() or snippet) + b"\n", *lines[line + 1 :]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "study.yaml"


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=10_000, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SOURCES), st.lists(OPERATIONS, min_size=1, max_size=4))
def test_damaged_files_load_or_say_why(
    file: Path, source: bytes, operations: list[tuple[str, int, int, bytes]]
) -> None:
    file.write_bytes(damaged(source, operations))
    try:
        load_study(file)
    except SpecError as error:
        for one in error.errors if isinstance(error, SpecErrors) else (error,):
            assert one.message
            assert one.file == str(file)
            assert "\n" not in one.message
