"""Where this tool keeps what several of its runs on a host must know of each other: leases and run records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """``$AUTOTUNE_STATE``, else ``$XDG_STATE_HOME/autotune``, else ``~/.local/state/autotune``; made, for us alone."""
    env = os.environ if environ is None else environ
    if own := env.get("AUTOTUNE_STATE"):
        folder = Path(own).expanduser().absolute()
    elif Path(shared := env.get("XDG_STATE_HOME", "")).is_absolute():
        folder = Path(shared) / "autotune"
    else:
        folder = Path(env.get("HOME") or Path.home()) / ".local" / "state" / "autotune"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
