"""A user's folder of search spaces that no other test sees."""

from collections.abc import Callable
from pathlib import Path

import pytest

WriteSpace = Callable[[str, str], Path]


@pytest.fixture
def write_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteSpace:
    """Writes a space into a folder that `$AUTOTUNE_SPACES` names; nothing of the machine's user is looked at."""
    folder = tmp_path / "spaces"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_SPACES", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(name: str, text: str) -> Path:
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
