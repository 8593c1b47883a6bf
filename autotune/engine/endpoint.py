"""`endpoint`: a server that somebody else runs. It is measured, never started, changed, owned or stopped."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.engine import verdicts
from autotune.engine.client import EngineClient, model_ids, tokens_in
from autotune.engine.failure_values import Failure
from autotune.engine.protocol import Lease, OnPhase, Phase, Resolved, RunningEngine, StartFailure, StopReport
from autotune.errors import SpecError
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.study import StudySpec

LOOK = 1.0
"""Seconds between looks at /health."""


@dataclass(frozen=True)
class EndpointEngine:
    """Measures one server.

    Attributes:
        url: base URL without a trailing slash.
        api_key: empty for none.
        served_model: name to ask for; empty takes the first one of /v1/models.
        ready_timeout: seconds that the server gets to answer.
        probe_timeout: seconds that the first request gets.
    """

    url: str
    api_key: str = field(default="", repr=False)
    served_model: str = ""
    ready_timeout: float = 30.0
    probe_timeout: float = 120.0

    @property
    def live_settings(self) -> frozenset[str]:
        return frozenset()

    async def start(
        self, config: EngineConfig, lease: Lease, *, folder: Path, on_phase: OnPhase | None = None
    ) -> RunningEngine | StartFailure:
        """Wait until the server answers a probe request. `config` cannot be applied: it only says what is believed."""
        began = time.monotonic()
        client = EngineClient(self.url, self.api_key)
        if on_phase is not None:
            on_phase("connect")
        try:
            model = await self._connect(client, began)
            if isinstance(model, str):
                version = await client.version()
                return RunningEndpoint(client, self.api_key, model, Resolved(version=version), began)
        except BaseException:
            await client.close()
            raise
        await client.close()
        return StartFailure(model, (), time.monotonic() - began, None)

    async def _connect(self, client: EngineClient, began: float) -> str | Failure:
        """The served name of a server that answers with tokens, or why there is none."""
        while True:
            listed = await client.models()
            if listed.status == 200:
                break
            if listed.status in (401, 403):
                return verdicts.unreachable(self.url, "it refuses the key; set the variable that `api_key_env` names")
            if time.monotonic() - began > self.ready_timeout:
                return verdicts.unreachable(self.url, f"/v1/models: HTTP {listed.status} {listed.text[:200]}")
            await asyncio.sleep(0.2)
        names = model_ids(listed)
        model = self.served_model or (names[0] if names else "")
        if model not in names:
            return verdicts.unreachable(self.url, f"it serves {', '.join(names) or 'no model'}, not {model or 'any'}")
        reply = await client.probe(model, self.probe_timeout)
        if reply.status != 200 or tokens_in(reply) == 0:
            return verdicts.not_serving(f"HTTP {reply.status}: {reply.text[:300]}")
        return model


class RunningEndpoint:
    """See `RunningEngine`. Its failure is that it stopped answering; a task asks once a second."""

    time_scale = 1.0
    log: Path | None = None

    def __init__(self, client: EngineClient, api_key: str, model: str, resolved: Resolved, began: float) -> None:
        self._client = client
        self._key = api_key
        self._model = model
        self._resolved = resolved
        self._phases = (Phase("connect", time.monotonic() - began),)
        self._failure: Failure | None = None
        self._task = asyncio.create_task(self._watch())

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def api_key(self) -> str:
        return self._key

    @property
    def served_model(self) -> str:
        return self._model

    @property
    def resolved(self) -> Resolved:
        return self._resolved

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self._phases

    def failure(self) -> Failure | None:
        return self._failure

    def processes(self) -> tuple[int, ...]:
        """None is ours."""
        return ()

    async def metrics(self) -> dict[str, float]:
        return await self._client.metrics()

    async def reset_caches(self) -> bool:
        """Emptying somebody else's cache is not ours to do."""
        return False

    async def reconfigure(self, live: Mapping[str, FrozenValue]) -> bool:
        return False

    async def stop(self) -> StopReport:
        """Only lets go."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()
        return StopReport(0.0)

    async def _watch(self) -> None:
        missed = 0
        while missed < 3:
            await asyncio.sleep(LOOK)
            # A busy server may be late once; three times in a row it is gone.
            missed = 0 if await self._client.reachable() else missed + 1
        self._failure = verdicts.unreachable(self.url, "it stopped answering")


def endpoint_engine(spec: StudySpec) -> EndpointEngine:
    """The engine that a study asks for.

    Raises:
        SpecError: no URL, or the key's variable is not set.
    """
    engine = spec.engine
    if not engine.url:
        raise SpecError("an endpoint needs a URL", key="engine.url", hint="such as http://127.0.0.1:8000")
    key = ""
    if engine.api_key_env:
        key = os.environ.get(engine.api_key_env, "")
        if not key:
            raise SpecError(
                f"the variable {engine.api_key_env} is not set",
                key="engine.api_key_env",
                hint=f"export {engine.api_key_env}=... before the start; the key is never written down.",
            )
    return EndpointEngine(engine.url.rstrip("/"), key, engine.served_model or "")
