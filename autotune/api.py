"""What `import autotune` offers: read a study, run it, read what it found. See `examples/python_api.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Settings: TypeAlias = Mapping[str, object]
"""Keys of a study file, dotted, with their values: ``{"search.trials": 20, "load.levels": [8, 16]}``."""
