"""Everything that is kept of a study, in one database."""

from autotune.store.store import MOVED, Interrupted, Store, StudyRow, shown

__all__ = ["MOVED", "Interrupted", "Store", "StudyRow", "shown"]
