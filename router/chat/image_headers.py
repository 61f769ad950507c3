"""Reads the sizes of images from their headers; nothing is unpacked or decoded.

A library that opens images reads all that stands before the pixels: a kilobyte may unpack to megabytes of
remarks, and tiny parts by the hundred thousand take seconds. Both are refused here, since the engine decodes
with such a library.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MOST_CHUNKS = 8192  # of a PNG: one for each 8 KiB as a rule
MOST_SEGMENTS = 1024  # of the other formats, before the first pixels: a camera writes a few dozen
MOST_PACKED_TEXTS = 16  # of a PNG: each may unpack to a megabyte
_PNG = b"\x89PNG\r\n\x1a\n"
_PACKED_TEXTS = frozenset({b"zTXt", b"iTXt", b"iCCP"})
_JPEG = b"\xff\xd8"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN = 0xDA
# Of others decoders differ in what belongs to them, so that one of them might find another size in there.
_JPEG_KNOWN = _JPEG_SIZES | {0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}
_GIFS = (b"GIF87a", b"GIF89a")
_GIF_EXTENSION, _GIF_COMMENT, _GIF_FRAME = 0x21, 0xFE, 0x2C


class ImageHeader(NamedTuple):
    media_type: str
    width: int
    height: int


def read_header(data: bytes) -> ImageHeader:
    """Raises ValueError for what is no image of a known format, or is built to be costly to open."""
    try:
        if data.startswith(_PNG):
            header = _png(data)
        elif data.startswith(_JPEG):
            header = _jpeg(data)
        elif data.startswith(_GIFS):
            header = _gif(data)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            header = _webp(data)
        else:
            raise ValueError("an unknown format")
    except (struct.error, IndexError):
        raise ValueError("its header is not complete") from None
    if not (header.width and header.height):
        raise ValueError("an image without pixels")
    return header


def _png(data: bytes) -> ImageHeader:
    """The first chunk has the size; another one that has, anywhere, would be another image."""
    length, kind, width, height = struct.unpack_from(">I4sII", data, len(_PNG))
    if kind != b"IHDR" or length != 13:
        raise ValueError("its first chunk is not its header")
    at, packed = len(_PNG), 0
    for number in range(MOST_CHUNKS):
        if at + 8 > len(data):
            return ImageHeader("image/png", width, height)
        length, kind = struct.unpack_from(">I4s", data, at)
        packed += kind in _PACKED_TEXTS
        if (kind == b"IHDR" and number) or packed > MOST_PACKED_TEXTS:
            raise ValueError("it has two headers, or too many packed texts")
        at += length + 12
    raise ValueError("it has too many chunks")


def _jpeg(data: bytes) -> ImageHeader:
    """One marker before the scan has the size."""
    size, at = None, len(_JPEG)
    for _ in range(MOST_SEGMENTS):
        mark, kind = data[at], data[at + 1]
        if mark != 0xFF:
            raise ValueError("there is no marker where one must be")
        if kind == 0xFF:  # fills up
            at += 1
            continue
        at += 2
        if kind == _JPEG_SCAN:
            break
        if kind not in _JPEG_KNOWN:
            raise ValueError("it has an unknown segment")
        (length,) = struct.unpack_from(">H", data, at)
        if kind in _JPEG_SIZES:
            if size is not None:
                raise ValueError("it has two sizes")
            size = struct.unpack_from(">HH", data, at + 3)
        at += max(length, 2)
    if size is None:
        raise ValueError("it has no size")
    height, width = size
    return ImageHeader("image/jpeg", width, height)


def _gif(data: bytes) -> ImageHeader:
    """The screen's size, or that of the first frame where it reaches beyond."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _colours(flags)
    parts = 0
    while data[at] == _GIF_EXTENSION:
        if not data[at + 2] and data[at + 1] != _GIF_COMMENT:  # where decoders differ
            raise ValueError("it has an empty extension")
        at += 2
        while data[at]:
            at, parts = at + data[at] + 1, parts + 1
            if parts > MOST_SEGMENTS:
                raise ValueError("it has too many blocks")
        at += 1
    if data[at] != _GIF_FRAME:
        raise ValueError("it has no frame")
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, at + 1)
    return ImageHeader("image/gif", max(width, left + frame_width), max(height, top + frame_height))


def _colours(flags: int) -> int:
    """The bytes of a table of colours."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(data: bytes) -> ImageHeader:
    kind, first = data[12:16], 20
    if kind == b"VP8X":
        size = data[first + 4 : first + 10]
        width = int.from_bytes(size[:3], "little") + 1
        height = int.from_bytes(size[3:], "little") + 1
    elif kind == b"VP8L" and data[first] == 0x2F:
        (packed,) = struct.unpack_from("<I", data, first + 1)
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 " and data[first + 3 : first + 6] == b"\x9d\x01\x2a":
        width, height = (each & 0x3FFF for each in struct.unpack_from("<HH", data, first + 6))
    else:
        raise ValueError("its first chunk has no size")
    return ImageHeader("image/webp", width, height)
