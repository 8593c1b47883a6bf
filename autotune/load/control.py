"""Requests beside the load: models, metrics, tokenizer, caches. They carry the target's key and trust."""

from __future__ import annotations

import aiohttp

from autotune.errors import EnvironmentFault
from autotune.load.report import Target
from autotune.load.tls import client_context, handshake_fault


def control_session(target: Target, seconds: float) -> aiohttp.ClientSession:
    """A session for a few requests, each of `seconds` at most.

    Raises:
        SpecError: the target's CA file cannot be read.
    """
    secure = target.url.startswith("https://")
    connector = aiohttp.TCPConnector(ssl=client_context(target.ca_file, target.insecure)) if secure else None
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=seconds))


def root_of(target: Target) -> str:
    """The server's address without `/v1`."""
    return target.url.rstrip("/").removesuffix("/v1")


def unreachable(route: str, error: BaseException, hint: str | None = None) -> EnvironmentFault:
    """The fault to raise when a route cannot be asked; a failed TLS handshake is named as such."""
    if (found := handshake_fault(error)) is not None:
        return EnvironmentFault(f"cannot reach {route}: {found[0]}", hint=found[1])
    return EnvironmentFault(f"cannot reach {route}: {error or type(error).__name__}", hint=hint)
