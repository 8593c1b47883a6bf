"""Types of the arrays that the gate computes with, and their compact form in JSON."""

from __future__ import annotations

import base64
import zlib

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


def pack(array: Reals | Ids) -> str:
    """An array as text: 4 bytes a number (single precision, or 32-bit ids), deflated."""
    small = array.astype("<f4") if array.dtype.kind == "f" else array.astype("<i4")
    return base64.b64encode(zlib.compress(small.tobytes(), 6)).decode()


def unpack_reals(text: str, shape: tuple[int, ...]) -> Reals:
    """The array of log-probabilities that `pack` wrote.

    Raises:
        ValueError: the text is damaged or has another number of values.
    """
    return np.frombuffer(_inflated(text), "<f4").astype(np.float64).reshape(shape)


def unpack_ids(text: str, shape: tuple[int, ...]) -> Ids:
    """The array of ids that `pack` wrote.

    Raises:
        ValueError: the text is damaged or has another number of values.
    """
    return np.frombuffer(_inflated(text), "<i4").astype(np.int64).reshape(shape)


def _inflated(text: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"damaged array: {error}") from error
