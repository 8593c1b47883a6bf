"""An Envoy front that lets in what was measured and no more."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.facts import deployment_facts
from autotune.export.operations.figures import Figures, figures_of
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text

_TYPE = "type.googleapis.com/envoy.extensions.filters."
_MAX_REQUEST_BYTES = 8 * 2**20
"""A prompt of a million tokens in JSON."""
_LISTEN_PORT = 10000


class Envoy:
    """Limits on requests in flight and pending from the measured load, request size, time-outs, a rate limit."""

    name = "envoy"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One static configuration."""
        figures = figures_of(recommendation)
        body = {
            "static_resources": {
                "listeners": [_listener(recommendation, figures)],
                "clusters": [_cluster(recommendation, figures)],
            }
        }
        text = comment(recommendation) + yaml_text(body)
        return (ExportFile(PurePosixPath(f"{recommendation.name}-envoy.yaml"), text),)


def timeout_s(figures: Figures) -> int:
    """Five times the measured p95 of a whole answer, a minute at least: who waits longer has lost interest."""
    return max(math.ceil(figures.e2e_p95 * 5), 60)


def _listener(recommendation: ExportInput, figures: Figures) -> dict[str, object]:
    limit = max(int(figures.requests), 1)
    filters: list[dict[str, object]] = [
        {
            "name": "envoy.filters.http.local_ratelimit",
            "typed_config": {
                "@type": f"{_TYPE}http.local_ratelimit.v3.LocalRateLimit",
                "stat_prefix": "rate",
                "token_bucket": {"max_tokens": 2 * limit, "tokens_per_fill": limit, "fill_interval": "1s"},
                "filter_enabled": {"default_value": {"numerator": 100, "denominator": "HUNDRED"}},
                "filter_enforced": {"default_value": {"numerator": 100, "denominator": "HUNDRED"}},
            },
        },
        {
            "name": "envoy.filters.http.buffer",
            "typed_config": {"@type": f"{_TYPE}http.buffer.v3.Buffer", "max_request_bytes": _MAX_REQUEST_BYTES},
        },
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": f"{_TYPE}http.router.v3.Router"},
        },
    ]
    route = {"cluster": recommendation.name, "timeout": f"{timeout_s(figures)}s", "idle_timeout": "60s"}
    manager = {
        "@type": f"{_TYPE}network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": recommendation.name,
        "request_headers_timeout": "10s",
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/v1/"}, "route": route}]}
            ]
        },
        "http_filters": filters,
    }
    return {
        "name": "http",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": _LISTEN_PORT}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _cluster(recommendation: ExportInput, figures: Figures) -> dict[str, object]:
    threshold = {
        "priority": "DEFAULT",
        "max_connections": 2 * figures.concurrency,
        "max_requests": figures.concurrency,
        "max_pending_requests": max(figures.concurrency // 2, 1),
        "max_retries": 1,
    }
    address = {"socket_address": {"address": recommendation.name, "port_value": deployment_facts().port}}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address}}]}
    return {
        "name": recommendation.name,
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [threshold]},
        "health_checks": [
            {
                "timeout": "5s",
                "interval": "10s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        "load_assignment": {"cluster_name": recommendation.name, "endpoints": [endpoint]},
    }
