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
import time
from typing import Any

NAME = "autotune-engine"
IMAGE = os.environ.get("ENGINE_IMAGE", "vllm/vllm-openai:v0.32.0")
GPUS = os.environ.get("ENGINE_GPUS", "1")
LOOK, SAY_AGAIN = 2.0, 60.0
"""Seconds between looks at a pod that does not run yet, and after which its reason is said once more."""


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
            {"name": "HOME", "value": "/models/home"},  # the image has no user 1000: its home would be /, closed to it
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


def waits_for(trial: str) -> str:
    """What keeps the engine's container from running, or nothing once it has run."""
    asked = ["kubectl", "get", "pods", "-l", f"autotune.trial={trial}", "-o", "json"]
    found = subprocess.run(asked, stdout=subprocess.PIPE, check=False)
    pods = json.loads(found.stdout or "{}").get("items", [])
    if not pods:
        return "no pod yet"
    status = pods[0].get("status", {})
    if status.get("phase", "Pending") != "Pending":
        return ""
    states = [one.get("state", {}).get("waiting", {}) for one in status.get("containerStatuses", [])]
    told = [one for one in [*states, *status.get("conditions", [])] if one.get("reason")]
    said = (": ".join(filter(None, (one["reason"], one.get("message")))) for one in told)
    return next(said, "Pending")


def logs(trial: str) -> int:
    """kubectl follows no container that has not begun; until then say why, for a silent start is taken for a hang."""
    said, at = "", 0.0
    while reason := waits_for(trial):
        if reason != said or time.monotonic() > at + SAY_AGAIN:
            print(f"[engine_pod] the pod waits: {reason}", flush=True)
            said, at = reason, time.monotonic()
        time.sleep(LOOK)
    return kubectl("logs", "-l", f"autotune.trial={trial}", "--follow", "--tail=-1")


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
