"""Files that are replaced in one step, so that nobody reads half of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Where to write what `path` will hold once the block ends; what was there stays where the block fails.

    A device or a pipe gets the bytes: a file in the place of /dev/null would be one for everybody.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with TemporaryDirectory() as folder:
            aside = Path(folder, path.name)
            yield aside
            path.write_bytes(aside.read_bytes())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
