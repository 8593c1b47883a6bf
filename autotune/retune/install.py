"""Writes what starts re-tuning by itself: a systemd unit or a Kubernetes CronJob. Pure: text in, text out."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from autotune.export.facts import label_of
from autotune.spec.retune import RetuneSpec

STOP_S = 180
"""Seconds for giving way: the engine is stopped and its memory is back."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where it will run.

    Attributes:
        study_file: absolute path.
        python: interpreter that has autotune.
        user: for systemd.
        image: for Kubernetes.
        gpus: for Kubernetes.
    """

    study: str
    study_file: Path
    python: str
    user: str = ""
    image: str = ""
    gpus: int = 1


def systemd_unit(place: Place) -> str:
    """A service that runs `autotune schedule`; cron, windows and time zone stand in the study file."""
    command = shlex.join([place.python, "-m", "autotune", "schedule", str(place.study_file)]).replace("%", "%%")
    user = f"User={place.user}\n" if place.user else ""
    return f"""\
[Unit]
Description=Re-tuning of {place.study}
After=network-online.target
Wants=network-online.target
# A pass that fails again and again is not worth its GPU time.
StartLimitIntervalSec=1h
StartLimitBurst=5

[Service]
Type=exec
{user}WorkingDirectory={str(place.study_file.parent).replace("%", "%%")}
ExecStart={command}
# SIGTERM asks a pass to give way; the next one goes on where it was.
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec={STOP_S}
Restart=on-failure
RestartSec=60
RestartPreventExitStatus=2
SuccessExitStatus=130

[Install]
WantedBy=multi-user.target
"""


def kubernetes_manifest(place: Place, spec: RetuneSpec) -> str:
    """A CronJob that runs `autotune retune`; one at a time, and a late start is still made."""
    name = label_of(f"{place.study}-retune")
    folder = str(place.study_file.parent)
    return f"""\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {name}
spec:
  schedule: {json.dumps(spec.cron)}
  timeZone: {json.dumps(spec.timezone)}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 43200
  jobTemplate:
    spec:
      backoffLimit: 0
      activeDeadlineSeconds: {round(spec.budget.time) + 2 * STOP_S}
      template:
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: {STOP_S}
          containers:
            - name: retune
              image: {json.dumps(place.image)}
              command: ["python3", "-m", "autotune", "retune", {json.dumps(str(place.study_file))}]
              workingDir: {json.dumps(folder)}
              resources:
                limits: {{nvidia.com/gpu: {place.gpus}}}
              volumeMounts:
                - {{name: study, mountPath: {json.dumps(folder)}}}
                - {{name: shm, mountPath: /dev/shm}}
          volumes:
            # The study file, its database and the deployed files; it must outlive the pod.
            - name: study
              persistentVolumeClaim: {{claimName: {name}}}
            - name: shm
              emptyDir: {{medium: Memory}}
"""
