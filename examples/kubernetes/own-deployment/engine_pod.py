"""Starts, follows and stops the engine's Deployment with kubectl; for `engine.kind: command` in a study's pod.

Only the standard library and `kubectl`. The key of the trial arrives in VLLM_API_KEY and goes into a Secret through a
pipe: it stands on no command line and in no manifest on a disk. Everything made here belongs to the study's pod
(`ownerReferences`), so that the cluster removes it when that pod is gone, whatever happened to it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import Any

NAME = "autotune-engine"
IMAGE = os.environ.get("ENGINE_IMAGE", "vllm/vllm-openai:v0.32.0")
GPUS = os.environ.get("ENGINE_GPUS", "1")


def kubectl(*words: str, manifest: object = None) -> int:
    text = None if manifest is None else json.dumps(manifest).encode()
    return subprocess.run(["kubectl", *words], input=text, check=False).returncode


def meta(trial: str) -> dict[str, Any]:
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": os.environ["POD_NAME"], "uid": os.environ["POD_UID"],
        "blockOwnerDeletion": False,
    }  # fmt: skip
    labels = {"app": NAME, "autotune.trial": trial}
    return {"name": NAME, "labels": labels, "ownerReferences": [owner]}


def secret(trial: str) -> dict[str, Any]:
    key = base64.b64encode(os.environ["VLLM_API_KEY"].encode()).decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta(trial), "type": "Opaque", "data": {"key": key}}


def deployment(trial: str, model: str, arguments: list[str]) -> dict[str, Any]:
    labels = meta(trial)["labels"]
    reference = {"secretKeyRef": {"name": NAME, "key": "key"}}
    container = {
        "name": "engine",
        "image": IMAGE,
        "args": ["--model", model, "--served-model-name", trial, "--host", "0.0.0.0", "--port", "8000", *arguments],
        "env": [
            {"name": "VLLM_API_KEY", "valueFrom": reference},
            {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
            {"name": "VLLM_SERVER_DEV_MODE", "value": "1"},
            {"name": "HF_HOME", "value": "/models"},
        ],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": GPUS, "cpu": "8", "memory": "64Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "models", "mountPath": "/models"},
        ],
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
        ],
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(trial),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def start(trial: str, model: str, arguments: list[str]) -> int:
    """Whatever an earlier start left goes first: two engines never share the GPU or the name."""
    code = kubectl("delete", "deployment,secret", "-l", f"app={NAME}", "--wait", "--ignore-not-found")
    code = code or kubectl("wait", "pod", "-l", f"app={NAME}", "--for=delete", "--timeout=120s")
    code = code or kubectl("create", "-f", "-", manifest=secret(trial))
    return code or kubectl("create", "-f", "-", manifest=deployment(trial, model, arguments))


def logs(trial: str) -> int:
    return kubectl("logs", "-l", f"autotune.trial={trial}", "--follow", "--tail=-1", "--pod-running-timeout=10m")


def stop(trial: str) -> int:
    code = kubectl("delete", "deployment,secret", "-l", f"autotune.trial={trial}", "--ignore-not-found")
    return code or kubectl("wait", "pod", "-l", f"autotune.trial={trial}", "--for=delete", "--timeout=120s")


def main(words: list[str]) -> int:
    action, trial, *rest = words
    if action == "start":
        return start(trial, rest[0], rest[1:])
    return {"logs": logs, "stop": stop}[action](trial)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
