"""Quantities with units, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec.units import bytes_text, duration_text, parse_bytes, parse_duration, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("4h", 14400.0), ("1h30m", 5400.0), ("1.5 s", 1.5), ("250us", 0.00025), ("2d", 172800.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-4h", "5 parsecs", "1h and 2m", "nan", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * 2**30), ("512M", 512 * 2**20), ("1GB", 10**9), ("0.5k", 512)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "80", "lots", "-1GiB", "9" * 400 + "GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@given(st.floats(0, 1e6, allow_nan=False))
def test_durations_read_back(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, rel=1e-6, abs=1e-12)


@given(st.integers(1, 2**60))
def test_sizes_read_back(size: int) -> None:
    assert parse_bytes(bytes_text(size)) == pytest.approx(size, rel=1e-12)


def test_short_texts_are_short() -> None:
    assert [duration_text(value) for value in (0.5, 20.0, 300.0, 14400.0, 90.0)] == ["500ms", "20s", "5m", "4h", "90s"]
    assert [bytes_text(value) for value in (80 * 2**30, 512 * 2**20, 1000)] == ["80GiB", "512MiB", "1000B"]
