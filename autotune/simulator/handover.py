"""Moving a prompt's KV cache from one engine to another, as vLLM's NIXL connector does between two servers.

A request with ``kv_transfer_params: {do_remote_decode: true}`` is answered with an address; a request that carries this
address finds its prompt computed once the cache has come over the link. Modelled is the time of the way, from card to
card in parallel under tensor parallel; not modelled is the memory that the sender keeps until the cache was fetched.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .failures import invalid

if TYPE_CHECKING:
    from .config import EngineSettings

_PRODUCERS = ("kv_producer", "kv_both")
_CONSUMERS = ("kv_consumer", "kv_both")
_ROLES = ("kv_producer", "kv_both", "kv_consumer")
_LINK_SHARE = 0.6  # of the link's peak: many blocks, each a read of its own
_HANDSHAKE_S = 1.5e-3  # metadata, descriptors and the notification; without any bytes


def connection(raw: object) -> tuple[str, str]:
    """Connector and role from ``--kv-transfer-config``, empty where there is none.

    :raises ConfigRefusal: what vLLM's ``KVTransferConfig`` refuses.
    """
    if not isinstance(raw, str):
        return "", ""
    try:
        config: Any = json.loads(raw)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise invalid("KVTransferConfig", f"Invalid JSON: {raw}")
    connector, role = config.get("kv_connector"), config.get("kv_role")
    if role is not None and role not in _ROLES:
        raise invalid("KVTransferConfig", f"Unsupported kv_role: {role}. Supported roles are {_ROLES}")
    if connector is not None and role is None:
        raise invalid(
            "KVTransferConfig", f"Please specify kv_role when kv_connector is set, supported roles are {_ROLES}"
        )
    return str(connector or ""), str(role or "")


def sends(settings: EngineSettings) -> bool:
    """Whether this engine keeps caches for others."""
    return bool(settings.kv_connector) and settings.kv_role in _PRODUCERS


def receives(settings: EngineSettings) -> bool:
    """Whether this engine takes caches of others."""
    return bool(settings.kv_connector) and settings.kv_role in _CONSUMERS


def transfer_seconds(settings: EngineSettings, tokens: int) -> float:
    """From the request's arrival until its prompt's cache is here, in simulated seconds."""
    return _HANDSHAKE_S + tokens * settings.kv_bytes_per_token / (_LINK_SHARE * settings.card.link_bandwidth)


def address(request: str, tokens: int, settings: EngineSettings) -> dict[str, object]:
    """What the second request has to bring along, in the connector's words."""
    blocks = -(-tokens // settings.block_size)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(range(blocks)),
        "remote_engine_id": "simulated",
        "remote_request_id": request,
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": settings.tensor_parallel,
        "remote_num_tokens": tokens,
    }
