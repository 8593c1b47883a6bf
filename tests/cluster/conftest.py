"""A Ray cluster of several raylets on loopback. Skipped, with the reason, where Ray is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all of it on loopback
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass
class Nodes:
    """The cluster of a test: a head without room for trials, and nodes with one GPU each that exist for Ray alone."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **resources: Any) -> Any:
        wanted = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 << 20, **resources}
        node = self.cluster.add_node(**wanted, include_dashboard=False)
        self.nodes.append(node)
        return node

    def kill(self, node: Any) -> None:
        """Without a goodbye, as a power cut would."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def nodes(nothing_stays_behind: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'vllm-autotune[ray]'")
    from ray.cluster_utils import Cluster

    assert os.environ["AUTOTUNE_STATE"], "nodes must not see the leases of other runs"
    head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Nodes(Cluster(initialize_head=True, head_node_args={**head, "node_ip_address": "127.0.0.1"}))
    try:
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()
