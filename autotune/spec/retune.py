"""The `retune` part of a study file: when a tuned configuration is looked at again, and what may happen then."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from autotune.spec.checks import Problem
from autotune.spec.part import Part
from autotune.spec.units import Seconds, Share

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^:/\s]+):\d{1,5}$")
_TIME = re.compile(r"^([01]\d|2[0-3]):[0-5]\d$")


class MaintenanceSpec(Part):
    """A maintenance window: tuning may run inside it and gives way when it closes."""

    days: list[Day] = Field(default_factory=lambda: list(DAYS), min_length=1)
    """Days on which it opens."""
    opens: str
    """Local time, such as `22:00`."""
    closes: str
    """Local time, such as `06:00`; at or before `opens` it is on the next day."""

    def problems(self) -> Iterable[Problem]:
        for key in ("opens", "closes"):
            if not _TIME.match(getattr(self, key)):
                yield Problem((key,), "is no time of day", "write it in quotes with two digits each, such as '06:30'")


class RetuneBudgetSpec(Part):
    """What re-tuning may cost."""

    time: Annotated[Seconds, Field(gt=0)] = 14400.0
    """Longest time of one pass, confirmation included."""
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    """GPU hours of one pass, canary and confirmation included; it gives way when they are spent."""
    gpu_hours_per_month: Annotated[float, Field(gt=0)] | None = None
    """GPU hours of all passes of the last 30 days; a pass that finds them spent only looks."""
    configurations: Annotated[int, Field(ge=2)] = 12
    """Measured configurations of one pass, the incumbent included."""


class TriggerSpec(Part):
    """What makes a pass tune again. Cheap ones are asked first."""

    fingerprint: bool = True
    """vLLM, model revision, driver, card or the study's arguments have changed."""
    metrics_url: str | None = None
    """Base URL of the running service; its /metrics tells the lengths of prompts and answers. Where vLLM is not
    installed here (`engine.kind: command` or `endpoint`) its /version tells of upgrades."""
    prometheus_url: str | None = None
    """Base URL of a Prometheus server that has the service's metrics; asked instead of `metrics_url`."""
    selector: str = ""
    """Labels of the service in Prometheus, such as `job="vllm"`."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable with the API key of `metrics_url`."""
    watch: Annotated[Seconds, Field(gt=0)] | None = None
    """How far back Prometheus is asked; default a week. `metrics_url` tells what happened since the last pass, and is
    watched for so long the first time and after a restart of the service; default one minute."""
    psi: Annotated[float, Field(gt=0)] = 0.25
    """Population stability index above which lengths have moved (0.1 is small, 0.25 is large)."""
    rate_change: Annotated[float, Field(gt=0)] = 0.5
    """Relative change of the request rate that counts, for studies with a rate."""
    prefix_change: Share = 0.2
    """Change of the prefix cache's hit rate that counts."""
    requests: Annotated[int, Field(ge=1)] = 500
    """Fewer requests than this say nothing about the workload."""
    canary: bool = True
    """Measure the incumbent and the baseline again, three times each, where nothing else has changed."""
    canary_drop: Share = 0.04
    """A median of three so much below the reference, twice in a row, is a drift."""

    @property
    def watched(self) -> float:
        """`watch` in seconds, or its default."""
        return self.watch if self.watch is not None else 604800.0 if self.prometheus_url is not None else 60.0

    def problems(self) -> Iterable[Problem]:
        for key in ("metrics_url", "prometheus_url"):
            value = getattr(self, key)
            if value is not None and not value.startswith(("http://", "https://")):
                yield Problem((key,), "is no URL", "write http://HOST:PORT")


class HookSpec(Part):
    """Told before or after a change: a command or a signed webhook."""

    command: list[str] | None = None
    """A command as a list, never a shell line. It gets AUTOTUNE_EVENT (the path of a JSON file) and more."""
    url: str | None = None
    """Where a JSON body is posted, signed with HMAC-SHA256. `${NAME}` is read from our environment and never stored."""
    secret_env: str = "AUTOTUNE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
    """Name of the environment variable with the secret of the signature."""
    timeout: Annotated[Seconds, Field(gt=0)] = 300.0
    """A hook that takes longer has failed."""

    def problems(self) -> Iterable[Problem]:
        if (self.command is None) == (self.url is None):
            yield Problem((), "a hook is either a command or a url", "give one of them: command: [./reload.sh]")
        if self.command is not None and not self.command:
            yield Problem(("command",), "is empty", "write a list, such as [systemctl, restart, vllm]")
        if self.url is not None and not self.url.startswith(("http://", "https://", "${")):
            yield Problem(("url",), "is no URL", "write https://HOST/PATH, or ${NAME} where the address is a secret")


class HooksSpec(Part):
    """Hooks around a promotion or a rollback, in their order. One that fails ends it and restores what was there."""

    before: list[HookSpec] = Field(default_factory=list)
    """Before files are replaced; a failure leaves everything as it is."""
    after: list[HookSpec] = Field(default_factory=list)
    """After files are replaced, to reload the service; a failure restores the files and runs these once more."""


class PromoteSpec(Part):
    """What becomes of a better configuration."""

    out: str = "deploy"
    """A file that is replaced, or a folder whose `current` link is switched; relative to the study file."""
    format: str = "vllm-yaml"
    """Format, as `autotune export --format` takes it."""
    margin: Share = 0.03
    """The lower bound of the paired gain over the incumbent must exceed this."""
    approval: Literal["auto", "manual"] = "auto"
    """`manual` waits for `autotune approve`, or for a file `retune/approve-0002` (the version) in its folder."""


class RetuneSpec(Part):
    """Keeping a tuned configuration true (docs/retune.md)."""

    cron: str = "0 3 * * 0"
    """When, as five cron fields: minute, hour, day of month, month, day of week (0 and 7 are Sunday)."""
    timezone: str = "UTC"
    """Time zone of `cron` and `windows`, such as `Europe/Berlin`."""
    jitter: Seconds = 0.0
    """Start up to so much later, by study and host, so that many hosts do not start at once."""
    windows: list[MaintenanceSpec] = Field(default_factory=list)
    """Maintenance windows. None: at any time."""
    budget: RetuneBudgetSpec = RetuneBudgetSpec()
    """What it may cost."""
    triggers: TriggerSpec = TriggerSpec()
    """What makes it tune again."""
    promote: PromoteSpec = PromoteSpec()
    """What becomes of a better configuration."""
    hooks: HooksSpec = HooksSpec()
    """Who is told."""
    metrics_file: str | None = None
    """Prometheus text file that is rewritten after every pass, for node_exporter's textfile collector."""
    metrics_listen: str | None = None
    """Address where `autotune schedule` answers /metrics with the same figures, such as `127.0.0.1:9464`."""

    def problems(self) -> Iterable[Problem]:
        if len(self.cron.split()) != 5:
            yield Problem(("cron",), "is no cron expression", "five fields, such as '0 3 * * 0' for Sundays at three")
        if self.metrics_listen is not None and not _ADDRESS.match(self.metrics_listen):
            yield Problem(("metrics_listen",), "is no address", "write HOST:PORT, such as 127.0.0.1:9464")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            yield Problem(("timezone",), "is no time zone", "write a name such as Europe/Berlin or UTC")
