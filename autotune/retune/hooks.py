"""Tells others before and after a change: commands, and webhooks signed with HMAC-SHA256."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

import aiohttp

from autotune.engine.usercommand import run_user_command
from autotune.retune.ledger import Gain
from autotune.spec.retune import HookSpec, HooksSpec

NAME = re.compile(r"\$\{([A-Za-z_]\w*)\}")
Moment = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class HookEvent:
    """What a hook is told.

    Attributes:
        change: `promote`, `rollback` or `restore` (a change that failed is undone).
        version, previous: numbers.
        path: the deployed file or folder.
        sentence: why.
        gains: evidence, as (objective, ratio, low, high).
    """

    study: str
    change: Literal["promote", "rollback", "restore"]
    version: int
    previous: int
    path: str
    sentence: str
    gains: tuple[Gain, ...] = ()

    def body(self, moment: Moment, at: float) -> str:
        """The JSON that is posted or written; `at`: Unix seconds."""
        return json.dumps({"event": f"{moment}_{self.change}", "time": round(at, 3), **asdict(self)}, sort_keys=True)


class Hooks(Protocol):
    """Runs the hooks of one moment."""

    async def run(self, moment: Moment, event: HookEvent, at: float) -> str | None:
        """Run them in order up to the first failure; its sentence, or None where all went well."""

    def plan(self) -> tuple[str, ...]:
        """What would be called, one sentence each."""


def signature(secret: str, at: float, body: str) -> str:
    """The value of `X-Autotune-Signature`: HMAC-SHA256 over time stamp, dot and body, so that none can be replayed."""
    text = f"{at:.0f}.{body}".encode()
    return f"sha256={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


@dataclass(frozen=True)
class StudyHooks:
    """The hooks of a study file.

    Attributes:
        spec: the hooks.
        folder: for logs and the events that commands read.
        cwd: where commands run: beside the study file.
        environ: where secrets of signatures come from.
    """

    spec: HooksSpec
    folder: Path
    cwd: Path
    environ: Mapping[str, str]

    async def run(self, moment: Moment, event: HookEvent, at: float) -> str | None:
        """See `Hooks.run`."""
        hooks: Sequence[HookSpec] = self.spec.before if moment == "before" else self.spec.after
        for number, hook in enumerate(hooks):
            place = f"hooks.{moment}[{number}]"
            body = event.body(moment, at)
            if hook.command is not None:
                problem = await self._command(hook, hook.command, event, body, place)
            else:
                problem = await self._post(hook, body, at)
            if problem is not None:
                return f"{place} {problem}"
        return None

    def plan(self) -> tuple[str, ...]:
        """See `Hooks.plan`. An address is named without its path and query, which may hold a token."""
        found = []
        for moment, hooks in (("before", self.spec.before), ("after", self.spec.after)):
            for hook in hooks:
                what = f"run {' '.join(hook.command)}" if hook.command else f"post to {_shown(hook.url or '')}"
                found.append(f"{moment} the change it would {what}")
        return tuple(found)

    async def _command(
        self, hook: HookSpec, command: Sequence[str], event: HookEvent, body: str, place: str
    ) -> str | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{place}.json"
        file.write_text(body, encoding="utf-8")
        env = {
            "AUTOTUNE_EVENT": str(file.absolute()), "AUTOTUNE_CHANGE": event.change, "AUTOTUNE_STUDY": event.study,
            "AUTOTUNE_VERSION": str(event.version), "AUTOTUNE_PREVIOUS": str(event.previous),
            "AUTOTUNE_PATH": event.path,
        }  # fmt: skip
        log = self.folder / f"{place}.log"
        result = await run_user_command(command, env, log=log, timeout=hook.timeout, cwd=self.cwd)
        if result.code == 0:
            return None
        how = f"ran longer than {hook.timeout:g} s" if result.code == -1 else f"ended with code {result.code}"
        return f"({command[0]}) {how}; its output is in {log}"

    async def _post(self, hook: HookSpec, body: str, at: float) -> str | None:
        url, missing = _filled(hook.url or "", self.environ)
        if missing:
            return f"({_shown(hook.url or '')}) was not called: ${missing}, part of its address, is not set"
        secret = self.environ.get(hook.secret_env, "")
        if not secret:
            return f"({_shown(hook.url or '')}) was not called: ${hook.secret_env}, the signature's secret, is not set"
        headers = {
            "Content-Type": "application/json",
            "X-Autotune-Timestamp": f"{at:.0f}",
            "X-Autotune-Signature": signature(secret, at, body),
        }
        timeout = aiohttp.ClientTimeout(total=hook.timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(url, data=body.encode(), headers=headers, allow_redirects=False) as response,
            ):
                if 200 <= response.status < 300:
                    return None
                return f"({_shown(hook.url or '')}) answered HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"({_shown(hook.url or '')}) cannot be reached: {type(error).__name__}"


def _filled(url: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The address with every `${NAME}` from the environment, and the first name that is not set there."""
    missing = next((name for name in NAME.findall(url) if not environ.get(name)), "")
    return NAME.sub(lambda found: environ.get(found[1], ""), url), missing


def _shown(url: str) -> str:
    """An address without what may be a secret in it: password, path and query."""
    if url.startswith("$"):
        return url.partition("/")[0]
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"
