"""Images for multimodal loads: PNG files of a stated size with fresh content, made without an image library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

BLOCK = 4
"""Pixels a side of one random patch. A megapixel then has 250 kB, about what a photo has as JPEG."""
LEVEL = 1
"""Compression effort; 13 ms a megapixel."""


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def random_png(generator: np.random.Generator, width: int, height: int) -> bytes:
    """An RGB image of random patches; two draws never give the same one.

    Args:
        generator: where its content comes from.
        width, height: size in pixels.
    """
    patches = generator.integers(0, 256, (-(-height // BLOCK), -(-width // BLOCK), 3), dtype=np.uint8)
    lines = np.repeat(patches, BLOCK, axis=1)[:, :width].reshape(len(patches), width * 3)
    # The first column names each line's filter: 0 plain, 2 difference to the line above, which is nothing here.
    raw = np.zeros((height, 1 + width * 3), dtype=np.uint8)
    raw[:, 0] = 2
    raw[::BLOCK, 0] = 0
    raw[::BLOCK, 1:] = lines
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(raw.tobytes(), LEVEL)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def image_part(png: bytes) -> str:
    """The part of a chat message's content that carries an image, as JSON."""
    data = base64.b64encode(png).decode()
    return f'{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}'
