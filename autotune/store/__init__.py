"""Everything that is kept of a study, in one database."""

from autotune.store.connecting import FILE, shown
from autotune.store.store import MOVED, Interrupted, Store, StudyRow

__all__ = ["FILE", "MOVED", "Interrupted", "Store", "StudyRow", "shown"]
