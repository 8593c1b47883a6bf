"""The Kubernetes example: valid studies, closed pods, small roles, and an engine that belongs to the study's pod."""

from __future__ import annotations

import base64
import importlib
import json
import os
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from autotune.assembly import assemble
from autotune.host.gpus import GpuHost
from autotune.study import open_study

FOLDER = Path(__file__).parents[2] / "examples/kubernetes"
KINDS = ("in-pod", "own-deployment")
SCRIPT = FOLDER / "own-deployment/engine_pod.py"
RECORDER = """#!{python}
import json, os, sys
piped = any(one == "-" for one in sys.argv)
call = {{"words": sys.argv[1:], "input": json.load(sys.stdin) if piped else None}}
with open(os.environ["RECORD"], "a") as stream:
    stream.write(json.dumps(call) + "\\n")
"""


def documents(kind: str) -> list[Any]:
    return list(YAML(typ="safe").load_all((FOLDER / kind / "study-job.yaml").read_text()))


def one(kind: str, what: str) -> Any:
    (found,) = [document for document in documents(kind) if document["kind"] == what]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_study_is_valid_and_keeps_its_results_on_the_volume(kind: str) -> None:
    study = open_study(FOLDER / kind / "study.yaml")
    assert study.folder == FOLDER / kind / "results"
    assert study.spec.hardware.gpus == 1


async def test_a_study_whose_engine_is_elsewhere_needs_no_gpu_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod has none; trials are charged for those of the Deployment, and memory is judged by the card's name."""
    monkeypatch.setattr("autotune.assembly.read_gpus", lambda: GpuHost(problem="no NVIDIA driver"))
    path = tmp_path / "study.yaml"
    path.write_text((FOLDER / "own-deployment/study.yaml").read_text())
    parts = await assemble(open_study(path, ["model=llama-3.1-8b", "hardware.gpus=2"]))
    try:
        assert (parts.lease_gpus, parts.trial_gpus) == (0, 2)
        assert parts.preflight.gpu is not None and parts.preflight.gpu.name == "h100"
    finally:
        parts.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_job_goes_on_after_an_eviction_and_stops_at_a_wrong_study(kind: str) -> None:
    spec = one(kind, "Job")["spec"]
    ignore, fail = spec["podFailurePolicy"]["rules"]
    assert ignore["action"] == "Ignore" and ignore["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert fail["action"] == "FailJob" and fail["onExitCodes"]["values"] == [2]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "a failure policy needs it"
    assert pod["terminationGracePeriodSeconds"] >= 120
    (container,) = pod["containers"]
    assert container["command"][:2] == ["autotune", "run"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/study"]]["persistentVolumeClaim"]["claimName"] == "chat-study"
    claims = {document["metadata"]["name"] for document in documents(kind) if "Claim" in document["kind"]}
    assert "chat-study" in claims
    state = {item["name"]: item.get("value") for item in container["env"]}
    assert state["AUTOTUNE_STATE"].startswith("/study/")


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_reaches_the_study_and_nothing_runs_as_root(kind: str) -> None:
    policies = [document["spec"] for document in documents(kind) if document["kind"] == "NetworkPolicy"]
    labels = one(kind, "Job")["spec"]["template"]["metadata"]["labels"]
    (mine,) = [policy for policy in policies if policy["podSelector"]["matchLabels"] == labels]
    assert mine["ingress"] == [] and "Ingress" in mine["policyTypes"]
    pod = one(kind, "Job")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["serviceAccountName"] == "study"
    assert all(not c["securityContext"]["allowPrivilegeEscalation"] for c in pod["containers"])


def test_the_pod_with_the_engine_has_shared_memory_and_no_token() -> None:
    pod = one("in-pod", "Job")["spec"]["template"]["spec"]
    shm = next(volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["medium"] == "Memory"
    assert pod["automountServiceAccountToken"] is False
    assert not any(document["kind"] in ("Role", "ClusterRole", "RoleBinding") for document in documents("in-pod"))


def test_the_role_allows_what_the_script_does_and_nothing_else() -> None:
    rules = one("own-deployment", "Role")["rules"]
    allowed = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert ("secrets", "get") not in allowed and not any("*" in pair for pair in allowed)
    assert {resource for resource, _ in allowed} == {"deployments", "secrets", "pods", "pods/log"}
    assert not any(document["kind"].startswith("Cluster") for document in documents("own-deployment"))


def run(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """Run the script with a kubectl that writes down what it is asked."""
    fake = tmp_path / "kubectl"
    fake.write_text(RECORDER.format(python=sys.executable))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    record = tmp_path / "calls"
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RECORD": str(record),
        "VLLM_API_KEY": "key-of-the-trial", "POD_NAME": "study-x", "POD_UID": "1234",
    }  # fmt: skip
    subprocess.run([sys.executable, str(SCRIPT), *words], env=environment, check=True, timeout=30)
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_an_engine_is_made_for_a_trial_and_belongs_to_the_pod(tmp_path: Path) -> None:
    calls = run(tmp_path, "start", "t-1", "Qwen/Qwen3-8B", "--max-num-seqs", "64", "--hf-overrides", '{"a": "b c"}')
    assert [call["words"][0] for call in calls] == ["delete", "wait", "create", "create"]
    secret, deployment = calls[2]["input"], calls[3]["input"]
    assert base64.b64decode(secret["data"]["key"]) == b"key-of-the-trial"
    assert "key-of-the-trial" not in json.dumps([call["words"] for call in calls]) + json.dumps(deployment)
    for made in (secret, deployment):
        assert made["metadata"]["ownerReferences"][0]["uid"] == "1234"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][-4:] == ["--max-num-seqs", "64", "--hf-overrides", '{"a": "b c"}']
    assert container["args"][container["args"].index("--served-model-name") + 1] == "t-1"
    service = one("own-deployment", "Service")["spec"]["selector"]
    assert service.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_an_engine_is_stopped_and_awaited(tmp_path: Path) -> None:
    calls = run(tmp_path, "stop", "t-1")
    assert [call["words"][0] for call in calls] == ["delete", "wait"]
    assert all("autotune.trial=t-1" in call["words"] for call in calls)


PODS = """#!{python}
import os, pathlib, sys
print(" ".join(sys.argv[1:]), file=open(os.environ["RECORD"], "a"))
if sys.argv[1] == "get":
    answers = pathlib.Path(os.environ["RECORD"]).with_name("answers")
    first, *rest = answers.read_text().splitlines()
    answers.write_text("\\n".join(rest))
    print(first)
else:
    print("vLLM API server")
"""
WAITING = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
UNSCHEDULED = {
    "phase": "Pending",
    "conditions": [{"reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu"}],
}


def test_the_log_is_followed_once_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """kubectl ends at once where the pod is missing or its image is still pulled; that would be the trial's end."""
    fake = tmp_path / "kubectl"
    fake.write_text(PODS.format(python=sys.executable))
    fake.chmod(0o755)
    pods = [
        [],
        [{"status": UNSCHEDULED}],
        [{"status": WAITING}],
        [{"status": WAITING}],
        [{"status": {"phase": "Running"}}],
    ]
    (tmp_path / "answers").write_text("\n".join(json.dumps({"items": one}) for one in pods))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "calls"))
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert script["main"](["logs", "t-1"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "[engine_pod] the pod waits: no pod yet",
        "[engine_pod] the pod waits: Unschedulable: Insufficient nvidia.com/gpu",
        "[engine_pod] the pod waits: ContainerCreating",
        "vLLM API server",
    ]
    assert (tmp_path / "calls").read_text().splitlines()[-1].startswith("logs -l autotune.trial=t-1 --follow")


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifests_fit_the_schemas_of_kubernetes(kind: str, tmp_path: Path) -> None:
    try:
        validator = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("kubernetes-validate is not installed")
    made = documents(kind)
    if kind == "own-deployment":
        made += [call["input"] for call in run(tmp_path, "start", "t-1", "model") if call["input"]]
    for document in made:
        validator.validate(document, "1.31", strict=True)
