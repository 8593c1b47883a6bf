"""lm-eval (extra `quality`) against a running engine, as a command of its own; per-question results are paired."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from autotune.engine.usercommand import run_user_command

TIMEOUT_S = 4 * 3600.0
METRICS = ("exact_match", "acc", "acc_norm", "prompt_level_strict_acc", "pass@1")
"""Which figure of a question counts: the first of these that it has."""
FILTERS = ("flexible-extract", "strict-match", "none")
"""Which reading of an answer counts where lm-eval gives several."""


class LmEvalFault(Exception):
    """lm-eval ran and gave nothing that can be used; the message holds the end of its output."""


def installed() -> bool:
    """Whether the extra `quality` is there."""
    return importlib.util.find_spec("lm_eval") is not None


def can_tokenize() -> bool:
    """Whether a tokenizer can be loaded: it takes the package transformers."""
    return importlib.util.find_spec("transformers") is not None


def title(task: str) -> str:
    """What a task is called in reports: a task of one's own by its file's name."""
    return Path(task).stem if task.endswith((".yaml", ".yml")) else task


def identity(task: str) -> str:
    """A name that changes with a task of one's own: its file, and the files beside it that it names."""
    path = Path(task)
    if path.suffix not in (".yaml", ".yml"):
        return task
    whole = hashlib.sha256()
    try:
        text = path.read_text("utf-8")
        whole.update(text.encode())
        for item in sorted(path.parent.iterdir()):
            if item.is_file() and item != path and item.name in text:
                whole.update(item.read_bytes())
    except (OSError, UnicodeDecodeError):
        return task  # lm-eval will say what is wrong with it
    return f"{path.stem}-{whole.hexdigest()[:12]}"


def command(
    task: str, *, url: str, model: str, tokenizer: str, concurrency: int, output: Path, python: str = sys.executable
) -> tuple[str, ...]:
    """The command line. The key goes by OPENAI_API_KEY, never in an argument.

    `local-completions` does generation and likelihood tasks alike; the chat variant refuses likelihoods and cuts `stop`
    to four entries.
    """
    # Likelihood tasks need a tokenizer; without one, tasks that only generate still run.
    tokenizing = {"tokenizer": tokenizer} if tokenizer else {"tokenizer_backend": "none"}
    arguments = {
        "model": model, "base_url": f"{url}/v1/completions", **tokenizing, "tokenized_requests": "False",
        "num_concurrent": str(concurrency), "max_retries": "2", "timeout": "600",
    }  # fmt: skip
    joined = ",".join(f"{name}={value}" for name, value in arguments.items())
    return (
        python, "-m", "lm_eval", "--model", "local-completions", "--model_args", joined, "--tasks", task,
        "--log_samples", "--output_path", str(output),
    )  # fmt: skip


async def evaluate(
    task: str, *, url: str, model: str, api_key: str, tokenizer: str, concurrency: int, folder: Path,
    python: str = sys.executable,
) -> dict[str, bool]:  # fmt: skip
    """Run one task; right or wrong by question id.

    Where the tokenizer cannot be loaded (no network, no such repository), the task runs once more without one: those
    that only generate need none.

    Raises:
        LmEvalFault: it failed (a task that does not exist, no access to its data set, ...).
    """

    async def run(tokenizer: str) -> dict[str, bool]:
        return await _run(
            task, url=url, model=model, api_key=api_key, tokenizer=tokenizer, concurrency=concurrency, folder=folder,
            python=python,
        )  # fmt: skip

    try:
        return await run(tokenizer)
    except LmEvalFault as first:
        if not tokenizer:
            raise
        try:
            return await run("")
        except LmEvalFault:
            raise first from None  # it was not the tokenizer


async def _run(
    task: str, *, url: str, model: str, api_key: str, tokenizer: str, concurrency: int, folder: Path, python: str
) -> dict[str, bool]:
    path = Path(task)
    own = path.suffix in (".yaml", ".yml")
    name = path.stem + ("" if tokenizer else "-without-tokenizer")
    # Data files of a task of one's own are looked for beside it; another folder means that ours must be absolute.
    output = folder.absolute() / f"lm-eval-{name}"
    shutil.rmtree(output, ignore_errors=True)  # the answers of an earlier engine
    argv = command(
        str(path.absolute()) if own else task, url=url, model=model, tokenizer=tokenizer, concurrency=concurrency,
        output=output, python=python,
    )  # fmt: skip
    env = {"OPENAI_API_KEY": api_key or "none", "TOKENIZERS_PARALLELISM": "false"}
    log, beside = folder / f"lm-eval-{name}.log", path.absolute().parent if own else None
    result = await run_user_command(argv, env, log=log, timeout=TIMEOUT_S, cwd=beside)
    found = read_samples(sorted(output.rglob("samples_*.jsonl")))
    if result.code != 0 or not found:
        last = " ".join(result.tail.splitlines()[-2:]) or "it wrote no samples"
        raise LmEvalFault(f"lm-eval ended with {result.code}: {last} ({log})")
    return found


def read_samples(paths: Iterable[Path]) -> dict[str, bool]:
    """Right or wrong by `<task>/<doc id>` from lm-eval's sample files.

    Raises:
        LmEvalFault: a file is damaged or holds no known figure.
    """
    best: dict[str, tuple[int, bool]] = {}
    for path in paths:
        name = path.stem.removeprefix("samples_").rsplit("_", 1)[0]
        for line in path.read_text("utf-8").splitlines():
            try:
                row = json.loads(line)
                key, rank = f"{name}/{row['doc_id']}", _filter_rank(row)
                if key not in best or rank < best[key][0]:
                    best[key] = (rank, _right(row))
            except (ValueError, KeyError, TypeError) as error:
                raise LmEvalFault(f"{path.name}: {type(error).__name__}: {error}") from error
    return {key: right for key, (_, right) in sorted(best.items())}


def _filter_rank(row: Mapping[str, object]) -> int:
    name = row.get("filter", "none")
    return FILTERS.index(str(name)) if name in FILTERS else len(FILTERS)


def _right(row: Mapping[str, object]) -> bool:
    for metric in METRICS:
        value = row.get(metric)
        if isinstance(value, bool | int | float):
            return float(value) >= 0.5
    raise KeyError(f"none of {', '.join(METRICS)}")


def paired(before: Mapping[str, bool], now: Mapping[str, bool]) -> tuple[Sequence[bool], Sequence[bool]]:
    """Answers to the questions that both have, in the same order."""
    shared = sorted(before.keys() & now.keys())
    return [before[key] for key in shared], [now[key] for key in shared]
