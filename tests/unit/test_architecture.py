"""The walls between the rooms, read from the source: who imports what, how long a module is, what is never called."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "autotune"
PLUGIN = "engine/plugin/"
"""Runs inside vLLM, in vLLM's interpreter."""

MAX_LINES = 400
LONGER: dict[str, str] = {}
"""Modules that may be longer, each with the reason."""

OWNERS: dict[str, tuple[str, ...]] = {
    "optuna": ("search/",),
    "optuna_dashboard": ("search/",),
    "sqlalchemy": ("store/",),
    "subprocess": ("engine/", "simulator/"),
    "signal": ("engine/", "simulator/", "cli/app.py", "cli/run.py", "load/ends.py"),
    "multiprocessing": ("load/", "engine/"),
    "ray": ("cluster/",),
    "pynvml": ("host/", "load/telemetry.py"),
    "vllm": (),
    "torch": (),
    "pickle": (),
    "marshal": (),
    "shelve": (),
}
"""Modules that only some rooms may import: prefixes of paths below `autotune/`."""

OUTER = {"cli", "testing"}
"""Rooms that nobody inside may import."""
ALLOWED: dict[str, set[str]] = {
    "spec": {"errors"},
    "simulator": set(),
    "space": {"errors", "spec"},
    "host": {"errors", "spec"},
}
"""What the lowest rooms may import of ours; `errors` belongs to everybody."""
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


@cache
def modules() -> tuple[tuple[str, ast.Module, str], ...]:
    """(path below the package, syntax tree, text) of every module of ours."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append((path.relative_to(PACKAGE).as_posix(), ast.parse(text), text))
    return tuple(found)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every absolute module that is imported anywhere in a module, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def runtime_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The same without blocks under `if TYPE_CHECKING`, which never run."""
    guarded = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    lines = {line for node in guarded for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return ((name, line) for name, line in imports(tree) if line not in lines)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_there_is_something_to_check() -> None:
    assert len(modules()) > 100


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_its_rooms(library: str) -> None:
    strangers = {
        f"{path}:{line}"
        for path, tree, _ in modules()
        for name, line in imports(tree)
        if name.split(".")[0] == library and not path.startswith((*OWNERS[library], PLUGIN))
    }
    assert strangers == set(), f"{library} belongs to {OWNERS[library] or 'nobody'}"


def test_processes_are_started_by_the_engine_alone() -> None:
    starters = {"create_subprocess_exec", "create_subprocess_shell", "system", "popen", "execv", "execve", "fork"}
    found = {
        f"{path}:{call.lineno}"
        for path, tree, _ in modules()
        for call in calls(tree)
        if isinstance(call.func, ast.Attribute) and call.func.attr in starters
        and not path.startswith(("engine/", "simulator/"))
    }  # fmt: skip
    assert found == set()


def test_no_wait_swallows_an_interruption() -> None:
    """Python 3.11's `wait_for` forgets a cancellation that comes when its result does; `asyncio.timeout` does not."""
    found = [f"{path}:{text[: match.start()].count(chr(10)) + 1}" for path, _, text in modules()
             for match in re.finditer(r"\bwait_for\(", text) if not path.startswith(PLUGIN)]  # fmt: skip
    assert found == []


def test_what_a_trial_runs_asks_for_the_time_where_it_may_be_virtual() -> None:
    """The host's clock hardly moves in a study in virtual time: a deadline by it would never come."""
    names = ("process", "readiness", "running", "enginelog", "keeper", "watchdog")
    rooms = ("run.py", "trial.py", "local.py", "load/", "quality/", "search/", *(f"engine/{name}.py" for name in names))
    of_the_host = {"load/sockets.py", "load/surroundings.py", "load/telemetry.py"}
    asks = re.compile(r"\b(time\.(monotonic|time|sleep)|perf_counter|process_time)\(")
    found = [
        f"{path}:{text[: match.start()].count(chr(10)) + 1}"
        for path, _, text in modules()
        if path.startswith(rooms) and path not in of_the_host
        for match in asks.finditer(text)
    ]
    assert found == []


def test_nothing_is_evaluated_and_no_shell_is_used() -> None:
    found = []
    for path, tree, _ in modules():
        for call in calls(tree):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            shell = any(
                word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
                for word in call.keywords
            )
            if name in {"eval", "exec", "compile", "__import__"} or shell:
                found.append(f"{path}:{call.lineno}")
            if isinstance(call.func, ast.Attribute) and call.func.attr == "create_subprocess_shell":
                found.append(f"{path}:{call.lineno}")
            if any(
                word.arg == "allow_pickle" and getattr(word.value, "value", True) is not False for word in call.keywords
            ):
                found.append(f"{path}:{call.lineno}")
    assert found == []


def test_modules_are_named_after_what_they_are() -> None:
    assert [path for path, _, _ in modules() if NO_NAMES & set(re.split(r"[/_.]", path))] == []


def test_modules_are_short() -> None:
    long = {path: text.count("\n") for path, _, text in modules() if text.count("\n") > MAX_LINES}
    assert {path: lines for path, lines in long.items() if path not in LONGER} == {}
    assert [path for path in LONGER if path not in long] == [], "no longer an exception"


def test_nobody_imports_the_outer_rooms() -> None:
    found = [
        f"{path}:{line} imports {name}"
        for path, tree, _ in modules()
        if path.split("/")[0] not in {*OUTER, "__main__.py"}
        for name, line in imports(tree)
        if name.startswith("autotune.") and name.split(".")[1] in OUTER
    ]
    assert found == []


@pytest.mark.parametrize("room", ALLOWED)
def test_the_lowest_rooms_know_nothing_above_them(room: str) -> None:
    found = {
        f"{path}:{line} imports {name}"
        for path, tree, _ in modules()
        if path.startswith(f"{room}/") and not path.startswith(PLUGIN)
        for name, line in runtime_imports(tree)
        if name.startswith("autotune.") and name.split(".")[1] not in {room, *ALLOWED[room]}
    }
    assert found == set()


def test_optuna_ends_at_the_search() -> None:
    """The driver speaks of proposals and records; no type of a library comes through to it."""
    for name in ("trial.py", "run.py", "decision.py", "outcome.py", "result.py", "events.py"):
        (text,) = [text for path, _, text in modules() if path == name]
        assert not re.search(r"\b(optuna|sqlalchemy|aiohttp|httpx)\b", re.sub(r'""".*?"""', "", text, flags=re.DOTALL))


def test_importing_the_package_loads_no_library() -> None:
    """Processes beside an engine import the package too; they must not pay for pandas or Optuna."""
    heavy = "optuna sqlalchemy pydantic numpy pandas aiohttp rich typer plotly asyncio"
    code = f"import autotune, sys; autotune.__version__; print(*(set('{heavy}'.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
