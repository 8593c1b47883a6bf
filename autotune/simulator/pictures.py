"""Images in chat messages: one token a patch of 28 x 28 pixels, as Qwen-VL counts; the tower takes no time."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

PATCH = 28
_PREFIX = "data:image/png;base64,"


def image_ids(part: object, vocabulary: int) -> list[int] | None:
    """Token ids that stand for an image: equal images have equal ones. None for a part that is no image.

    :raises ValueError: with what the client would be told.
    """
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    place = part.get("image_url")
    url = place.get("url") if isinstance(place, dict) else None
    if not isinstance(url, str) or not url.startswith(_PREFIX):
        raise ValueError("The simulator takes PNG images as data URLs only.")
    try:
        data = base64.b64decode(url[len(_PREFIX) :], validate=True)
    except binascii.Error:
        raise ValueError("Failed to load image: invalid base64") from None
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 33:
        raise ValueError("Failed to load image: cannot identify image file")
    width, height = struct.unpack(">II", data[16:24])
    count = -(-width // PATCH) * -(-height // PATCH)
    seed = zlib.crc32(data)
    return [(seed + 2_654_435_761 * number) % vocabulary for number in range(count)]
