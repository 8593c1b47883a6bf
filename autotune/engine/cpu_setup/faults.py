"""What keeps the CPU engine from being prepared."""

from __future__ import annotations

from autotune.errors import EnvironmentFault


class CpuUnsupported(EnvironmentFault):
    """This machine cannot run the CPU engine, whatever is installed."""

    exit_code = 3


class CpuSetupFault(EnvironmentFault):
    """A step failed for a reason that another try or another disk can mend."""

    exit_code = 2
