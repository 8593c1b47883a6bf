"""Everything that is kept of a study, in one database."""

from autotune.store.store import Interrupted, Store, StudyRow, shown

__all__ = ["Interrupted", "Store", "StudyRow", "shown"]
