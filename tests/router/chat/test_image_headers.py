"""Headers of images, against a library that decodes them, and files that are built to be costly to open."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from random import Random
from typing import Any

import PIL.Image
import pytest

from router.chat.image_headers import MOST_CHUNKS, MOST_PACKED_TEXTS, MOST_SEGMENTS, read_header
from tests.router.chat.pictures import picture

PIL.Image.init()
KINDS = ("PNG", "JPEG", "GIF", "WEBP")
SCAN = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*chunks: bytes, size: tuple[int, int] = (1, 1)) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0\0\0"))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + pixels + chunk(b"IEND")


def packed_text() -> bytes:
    """A kilobyte that unpacks to a megabyte."""
    return chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * (1 << 20), 9))


def jpeg_size(width: int, height: int) -> bytes:
    return b"\xff\xc0" + struct.pack(">HBHHBBBB", 11, 8, height, width, 1, 1, 0x11, 0)


def hidden(kind: int) -> bytes:
    """A segment in which a library that knows no such segments finds another size."""
    return bytes([0xFF, kind]) + struct.pack(">H", 2 + len(jpeg_size(1, 1))) + jpeg_size(60_000, 60_000)


def gif(extension: bytes, screen: tuple[int, int] = (5, 5), frame: tuple[int, int] = (5, 5)) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0, 0, 0)
    return head + extension + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (1000, 3)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lossless": True, "progressive": True},
        {"icc_profile": b"x" * 70_000, "comment": b"x" * 3_000},
        {"save_all": True, "append_images": [PIL.Image.new("RGB", (1, 1))]},
    ],
)
def test_a_header_says_what_a_decoder_finds(
    kind: str, size: tuple[int, int], options: dict[str, Any]
) -> None:
    if kind == "JPEG" or (kind == "WEBP" and size != (1, 1)):
        options = {
            name: value for name, value in options.items() if name not in ("save_all", "append_images")
        }
    with BytesIO() as file:
        PIL.Image.new("RGB", size, "red").save(file, kind, **options)
        data = file.getvalue()
    header = read_header(data)
    assert (header.width, header.height) == PIL.Image.open(BytesIO(data)).size
    assert header.media_type == f"image/{kind.lower()}"


@pytest.mark.parametrize(
    "data",
    [
        png(*[packed_text()] * (MOST_PACKED_TEXTS + 1)),
        png(chunk(b"tEXt", b"k\0v") * MOST_CHUNKS),
        png(chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))),
        png(size=(0, 5)),
        b"\xff\xd8" + b"\xff\xfe\0\2" * MOST_SEGMENTS + jpeg_size(1, 1) + SCAN,
        b"\xff\xd8" + jpeg_size(1, 1) + jpeg_size(60_000, 60_000) + SCAN,
        b"\xff\xd8" + b"\0" * 30_000 + jpeg_size(1, 1) + SCAN,
        b"\xff\xd8" + SCAN,
        gif(b"!\xfe" + b"\x01a" * (MOST_SEGMENTS + 1) + b"\0"),
        b"\xff\xd8" + jpeg_size(1, 1) + hidden(0x00) + SCAN,
        b"\xff\xd8" + jpeg_size(1, 1) + hidden(0xF0) + SCAN,
        gif(b"!\xf9\0"),
        b"RIFF\0\0\0\0WEBPXYZ " + b"\0" * 30,
    ],
)
def test_what_is_costly_to_open_or_has_two_sizes_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it has|its first|there is no|without pixels"):
        read_header(data)


def test_a_few_packed_texts_are_allowed_and_a_frame_beyond_its_screen_counts() -> None:
    assert read_header(png(packed_text(), packed_text())).width == 1
    assert read_header(gif(b"", (5, 5), (60_000, 60_000)))[1:] == (60_000, 60_000)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_never_anything_but_a_refusal(kind: str) -> None:
    dice, whole = Random(7), picture(kind)
    for _ in range(3_000):
        data = bytearray(whole[: dice.randrange(len(whole) + 1)])
        for _ in range(dice.randrange(4)):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            read_header(bytes(data))
        except ValueError:
            continue
