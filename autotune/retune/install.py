"""Writes what starts re-tuning by itself: a systemd unit or a Kubernetes CronJob. Pure: text in, text out."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from autotune.errors import SpecError
from autotune.export.facts import label_of
from autotune.retune.schedule import Schedule, plain_cron
from autotune.spec.retune import RetuneSpec

STOP_S = 180
"""Seconds for giving way: the engine is stopped and its memory is back."""
LOOKED_AT = 60
"""Scheduled times that are looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where it will run.

    Attributes:
        study_file: absolute path.
        python: interpreter that has autotune.
        cron, timezone: what the command line said instead of the study file; empty where it said nothing.
        user: for systemd.
        image: for Kubernetes.
        gpus: for Kubernetes.
    """

    study: str
    study_file: Path
    python: str
    cron: str = ""
    timezone: str = ""
    user: str = ""
    image: str = ""
    gpus: int = 1


def _stop_s(spec: RetuneSpec) -> int:
    """Seconds until a kill: a change that has begun is ended before it gives way, hooks included."""
    return STOP_S + math.ceil(sum(hook.timeout for hook in (*spec.hooks.before, *spec.hooks.after)))


def systemd_unit(place: Place, spec: RetuneSpec) -> str:
    """A service that runs `autotune schedule`; windows, and what the command line left out, stand in the study file."""
    options = [*(("--cron", place.cron) if place.cron else ())]
    options += [*(("--timezone", place.timezone) if place.timezone else ())]
    words = [place.python, "-m", "autotune", "schedule", str(place.study_file), *options]
    command = " ".join(_word(word) for word in words)
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
# Secrets of webhooks, tokens: NAME=value, one a line; readable for this user only.
EnvironmentFile=-/etc/autotune/{place.study}.env
ExecStart={command}
# SIGTERM asks a pass to give way; the next one goes on where it was.
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec={_stop_s(spec)}
Restart=on-failure
RestartSec=60
RestartPreventExitStatus=2
SuccessExitStatus=130

[Install]
WantedBy=multi-user.target
"""


def _word(text: str) -> str:
    """A word of a systemd command line: quoted where it has to be, with nothing expanded in it."""
    text = text.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def kubernetes_manifest(place: Place, spec: RetuneSpec, now: datetime) -> str:
    """A CronJob that runs `autotune retune`; one at a time, and a late start is made until the next one is due.

    Raises:
        SpecError: none of the scheduled times lies in a maintenance window, so that no pass would ever run.
    """
    name = label_of(f"{place.study}-retune")
    folder = str(place.study_file.parent)
    command = ["python3", "-m", "autotune", "retune", str(place.study_file)]
    command += ["--set", f"retune.timezone={place.timezone}"] if place.timezone else []
    fires = _fires(spec, now)
    gap = min((later - one).total_seconds() for one, later in pairwise(fires))
    stop = _stop_s(spec)
    return f"""\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {name}
spec:
  schedule: {json.dumps(plain_cron(spec.cron))}
  timeZone: {json.dumps(spec.timezone)}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: {max(60, round(gap))}
  jobTemplate:
    spec:
      backoffLimit: 0
      activeDeadlineSeconds: {round(spec.budget.time) + 2 * stop}
      template:
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: {stop}
          containers:
            - name: retune
              image: {json.dumps(place.image)}
              command: {json.dumps(command)}
              workingDir: {json.dumps(folder)}
              envFrom:  # secrets of webhooks, tokens
                - secretRef: {{name: {name}, optional: true}}
              resources:
                limits: {{nvidia.com/gpu: {place.gpus}}}
              volumeMounts:
                - {{name: study, mountPath: {json.dumps(folder)}}}
                - {{name: shm, mountPath: /dev/shm}}
          volumes:
            # A claim of yours with the study file, its database and the deployed files; it must outlive the pod.
            - name: study
              persistentVolumeClaim: {{claimName: {name}}}
            - name: shm
              emptyDir: {{medium: Memory}}
"""


def _fires(spec: RetuneSpec, now: datetime) -> list[datetime]:
    """The next scheduled times.

    Raises:
        SpecError: no window is open at any of them: a CronJob cannot wait for one.
    """
    schedule = Schedule.of(spec, "")
    fires = [now]
    for _ in range(LOOKED_AT):
        fires.append(schedule.cron.after(fires[-1]))
    fires = fires[1:]
    if not any(schedule.windows.opening(fire).begins <= fire for fire in fires):
        hint = "a CronJob does not wait for a window: choose a cron time inside one, or --install systemd"
        raise SpecError("no scheduled time lies in a maintenance window", key="retune.cron", hint=hint)
    return fires
