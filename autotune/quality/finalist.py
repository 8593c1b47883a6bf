"""Tiers 2 and 3, for finalists: questions with answers, paired with the baseline's, and the user's own command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from autotune.engine.protocol import RunningEngine
from autotune.engine.usercommand import run_user_command
from autotune.errors import SpecError
from autotune.load.report import Estimate
from autotune.quality import lmeval
from autotune.quality.answers import ScorerError, first_error
from autotune.quality.paired import MARGIN, Paired, power_sentence
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.quality.sanity import yes_or_no
from autotune.quality.tasks import Task, ask, read_task
from autotune.quality.wire import HttpScorer

COMMAND_TIMEOUT_S = 3600.0


class Memory(Protocol):
    """See `autotune.quality.gate.GateStore`."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, body: str) -> None: ...


@dataclass(frozen=True)
class Finals:
    """What finalists are asked.

    Attributes:
        tasks: the user's questions.
        lm_eval: names of lm-eval tasks.
        command: the user's command.
        model: where lm-eval finds the tokenizer; empty: nowhere.
        concurrency: questions in flight.
    """

    tasks: tuple[Task, ...] = ()
    lm_eval: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    model: str = ""
    concurrency: int = 8

    @property
    def empty(self) -> bool:
        """Nothing is asked."""
        return not (self.tasks or self.lm_eval or self.command)

    @property
    def identity(self) -> list[object]:
        """What a kept verdict depends on."""
        return [
            [task.hash for task in self.tasks],
            [lmeval.identity(name) for name in self.lm_eval],
            list(self.command),
        ]

    async def checks(
        self, engine: RunningEngine, folder: Path, memory: Memory, *, place: str, baseline: bool
    ) -> list[QualityCheck]:
        """Ask everything.

        Args:
            engine: the running engine, idle.
            folder: for logs.
            memory: keeps the baseline's answers.
            place: prefix of the names in `memory`.
            baseline: this engine's answers are the measure; they are kept where there are none yet.
        """
        found: list[QualityCheck] = []
        for task in self.tasks:
            name = f"{place}-answers-{task.hash}"
            found.append(await self._one(task.name, name, self._own(engine, task), memory, baseline))
        for lm_task in self.lm_eval:
            name = f"{place}-answers-lm-eval-{lmeval.identity(lm_task)}"
            found.append(
                await self._one(lmeval.title(lm_task), name, self._lm_eval(engine, lm_task, folder), memory, baseline)
            )
        if self.command:
            found.append(await self._user(engine, folder))
        return found

    async def _one(self, task: str, name: str, asking: _Asking, memory: Memory, baseline: bool) -> QualityCheck:
        now = await asking.answers()
        if isinstance(now, str):
            return replace(yes_or_no(f"task {task}", False, now, 2), verdict=QualityVerdict.UNDECIDED)
        body = memory.get(name)
        if body is None and baseline:
            body = json.dumps(now)
            memory.put(name, body)
        if body is None:
            note = "the baseline has not been asked yet"
            return replace(yes_or_no(f"task {task}", False, note, 2), verdict=QualityVerdict.UNDECIDED)
        return task_check(task, json.loads(body), now)

    def _own(self, engine: RunningEngine, task: Task) -> _Asking:
        return _OwnTask(engine, task, self.concurrency)

    def _lm_eval(self, engine: RunningEngine, task: str, folder: Path) -> _Asking:
        return _LmEvalTask(engine, task, self.model, self.concurrency, folder)

    async def _user(self, engine: RunningEngine, folder: Path) -> QualityCheck:
        env = {
            "AUTOTUNE_URL": engine.url, "AUTOTUNE_MODEL": engine.served_model, "AUTOTUNE_API_KEY": engine.api_key,
        }  # fmt: skip
        log = folder / "quality-command.log"
        result = await run_user_command(self.command, env, log=log, timeout=COMMAND_TIMEOUT_S)
        note = f"exit code {result.code} after {result.seconds:.0f} s"
        if result.code:
            note += f": {result.tail.splitlines()[-1] if result.tail else 'no output'} ({log})"
        check = yes_or_no("command", result.code == 0, note, 3)
        if result.code in (-1, 127):
            return replace(check, verdict=QualityVerdict.UNDECIDED)
        return check


class _Asking(Protocol):
    async def answers(self) -> Mapping[str, bool] | str:
        """Right or wrong by question; a sentence where there are no answers."""


@dataclass(frozen=True)
class _OwnTask:
    engine: RunningEngine
    task: Task
    concurrency: int

    async def answers(self) -> Mapping[str, bool] | str:
        engine = self.engine
        problem = ""
        right: Sequence[bool] = ()
        try:
            async with HttpScorer(engine.url, engine.served_model, engine.api_key) as scorer:
                right = await ask(scorer, self.task, self.concurrency)
        except* ScorerError as errors:
            problem = str(first_error(errors))
        return problem or {str(index): item for index, item in enumerate(right)}


@dataclass(frozen=True)
class _LmEvalTask:
    engine: RunningEngine
    task: str
    tokenizer: str
    concurrency: int
    folder: Path

    async def answers(self) -> Mapping[str, bool] | str:
        engine = self.engine
        try:
            return await lmeval.evaluate(
                self.task, url=engine.url, model=engine.served_model, api_key=engine.api_key, tokenizer=self.tokenizer,
                concurrency=self.concurrency, folder=self.folder,
            )  # fmt: skip
        except lmeval.LmEvalFault as error:
            return str(error)


def task_check(task: str, before: Mapping[str, bool], now: Mapping[str, bool]) -> QualityCheck:
    """Non-inferiority: passes where a fall beyond the margin is excluded, fails where there is one."""
    shared = lmeval.paired(before, now)
    if not shared[0]:
        check = yes_or_no(f"task {task}", False, "no question was answered by both", 2)
        return replace(check, verdict=QualityVerdict.UNDECIDED)
    pair = Paired.of(*shared)
    fall = pair.fall()
    note = (
        f"{pair.right_before} of {pair.questions} right before, {pair.right_before - pair.lost + pair.gained} now "
        f"(lost {pair.lost}, gained {pair.gained}, McNemar p = {pair.p_value():.2g}); {power_sentence(pair)}"
    )
    if pair.right_before <= MARGIN * pair.questions:
        note += "; the baseline gets so few right that no fall beyond the margin could show: look at the task"
        return QualityCheck(2, f"task {task}", fall, MARGIN, 0.0, QualityVerdict.UNDECIDED, note)
    return QualityCheck(2, f"task {task}", fall, MARGIN, 0.0, _verdict(fall), note)


def _verdict(fall: Estimate) -> QualityVerdict:
    if fall.high <= MARGIN:
        return QualityVerdict.PASSED
    # Certainly worse, and by more than the margin as far as is known.
    return QualityVerdict.FAILED if fall.low > 0 and fall.value > MARGIN else QualityVerdict.UNDECIDED


def finals_of(
    tasks: Sequence[str], command: Sequence[str] | None, *, model: str, concurrency: int, beside: Path
) -> Finals:
    """Read what a study asks its finalists.

    Raises:
        SpecError: a file of questions is wrong, or lm-eval is named and not installed.
    """
    own: list[Task] = []
    names: list[str] = []
    for entry in tasks:
        if entry.endswith(".jsonl"):
            own.append(read_task(beside / entry))
        elif entry.endswith((".yaml", ".yml")):
            names.append(str(_existing(beside / entry)))
        else:
            names.append(entry)
    if names and not lmeval.installed():
        raise SpecError(
            f"{', '.join(names)}: lm-eval is not installed",
            key="quality.tasks",
            hint="pip install 'vllm-autotune[quality]', or give the path of a file that ends in .jsonl",
        )
    tokenizer = model if lmeval.can_tokenize() else ""
    return Finals(tuple(own), tuple(names), tuple(command or ()), tokenizer, concurrency)


def _existing(path: Path) -> Path:
    if not path.is_file():
        hint = "a name without .yaml is one of lm-eval's own tasks"
        raise SpecError("there is no such lm-eval task file", file=path, key="quality.tasks", hint=hint)
    return path


def combined(first: Sequence[QualityCheck], finals: Sequence[QualityCheck]) -> QualityVerdict:
    """The verdict of all tiers. Nothing makes a failure good; tasks decide what the divergence left open.

    Where the divergence passed, too few questions to exclude a fall do not block: their figure must only lie within the
    margin, and the check's note says what so few questions can see.
    """
    seen = {check.verdict for check in (*first, *finals)}
    if QualityVerdict.FAILED in seen:
        return QualityVerdict.FAILED
    open_tasks = [check for check in finals if check.verdict is QualityVerdict.UNDECIDED]
    if QualityVerdict.UNDECIDED in {check.verdict for check in first}:
        decided = any(check.tier == 2 and check.verdict is QualityVerdict.PASSED for check in finals)
        return QualityVerdict.PASSED if decided and not open_tasks else QualityVerdict.UNDECIDED
    if any(check.estimate.n <= 1 or check.estimate.value > check.limit for check in open_tasks):
        return QualityVerdict.UNDECIDED
    return QualityVerdict.PASSED
