"""Server-sent events with JSON in them."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
COMMENT = b": the answer goes on\n\n"
HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
_EVENT_END = b"\n\n"
# JSON allows these bare, but parsers that split with `str.splitlines` would break an event at them.
_LINE_ENDS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def event(value: Any) -> bytes:
    return b"data: %b\n\n" % one_line(msgspec.json.encode(value))


def split(data: bytes) -> list[bytes]:
    """One or several events, each by itself; comments are none."""
    whole = [part + _EVENT_END for part in data.split(_EVENT_END)]
    return [each for each in whole if each != _EVENT_END and not each.startswith(b":")]


def json_string(text: str) -> bytes:
    """A JSON string that is one line for every parser."""
    return one_line(msgspec.json.encode(text))


def one_line(encoded: bytes) -> bytes:
    """JSON that no parser breaks, however it splits lines."""
    return encoded if encoded.isascii() else encoded.decode().translate(_LINE_ENDS).encode()
