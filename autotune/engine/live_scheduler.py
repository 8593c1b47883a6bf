"""Live limits for vLLM: writes the file that our scheduler class reads (see `plugin/autotune_live_scheduler.py`)."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.live import LiveLimits, LiveStart
from autotune.space.config import FrozenValue

PLUGIN = Path(__file__).parent / "plugin"
_FIELDS = (("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("long_prefill_token_threshold", -1))
"""In the order of the file, with the number that means `as started`."""
NAMES = frozenset(name for name, _ in _FIELDS)
_SIZE = 64
_FIELD = struct.Struct("<q")
_LIMITS = struct.Struct("<3q")


@dataclass(frozen=True, slots=True)
class InForce:
    """What the scheduler says it applied last; all 0 before it applied anything."""

    revision: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int


class SharedFileLimits:
    """One engine's limits file. The file stays in the trial's folder for as long as the engine runs."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_SIZE))
        self._path = path
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), _SIZE)
        self._revision = 0

    @property
    def start(self) -> LiveStart:
        return LiveStart(
            args=("--scheduler-cls", "autotune_live_scheduler.LiveScheduler"),
            env=(("AUTOTUNE_LIVE_LIMITS", str(self._path.resolve())),),
            imports=str(PLUGIN),
        )

    def write(self, values: Mapping[str, FrozenValue]) -> bool:
        """Limits for the next load. A setting that is not given returns to what the engine was started with."""
        if not values.keys() <= NAMES:
            return False
        limits: list[int] = []
        for name, as_started in _FIELDS:
            value = values.get(name, as_started)
            if isinstance(value, bool) or not isinstance(value, int):
                return False
            limits.append(value)
        _LIMITS.pack_into(self._map, 8, *limits)
        self._revision += 1
        _FIELD.pack_into(self._map, 0, self._revision)  # last, so that the reader never sees half a change
        return True

    def in_force(self) -> InForce:
        """What the scheduler applied last."""
        return InForce(*struct.unpack_from("<4q", self._map, 32))

    def close(self) -> None:
        """Release the file; it goes with the trial's folder."""
        self._map.close()
        self._file.close()


@dataclass(frozen=True, slots=True)
class SharedFileFactory:
    """Makes one limits file per engine start."""

    names: frozenset[str] = NAMES

    def prepare(self, folder: Path) -> LiveLimits:
        return SharedFileLimits(folder / "live-limits")
