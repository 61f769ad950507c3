"""Decodes JSON without holding the interpreter for more than a few milliseconds.

While msgspec decodes, nothing else runs in this process, in whatever thread it does. A megabyte of text takes
two milliseconds; a megabyte of empty lists takes fifty, and one of `1e300` two seconds, since numbers beyond
its tables are read digit by digit. So larger bodies are weighed first, slice by slice: what is too much to be
decoded in a moment is refused, and what has many numbers, or slow ones, is read by the standard library,
which calls Python for each number and so lets others run in between.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")
MOST_ITEMS = 1 << 15
MOST_NAMES = 1 << 14
MOST_VALUES = 1 << 15
MOST_NUMBERS = 300_000  # of lists of numbers, where they are usual
MOST_DIGITS = 400
# A body of this size is decoded in less than 4 ms whatever it is.
LIGHT_BYTES = 1 << 11
_LARGE_BYTES = 1 << 18
_MOST_SLOW_NUMBERS = 128
_SLICE_BYTES = 1 << 14
_FEW_QUOTES = 256
_BACKSLASH = ord("\\")
_any = msgspec.json.Decoder()
# All digits alike and no points: so exponents can be counted, and numbers of more digits than a double has.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_EXPONENT, _MANY_DIGITS, _LONGEST = b"0e", b"0" * 16, b"0" * MOST_DIGITS


class TooMuchJson(ValueError):
    """The JSON has more in it than may be decoded at once; says how much, and what is allowed."""


@dataclass(slots=True)
class Weight:
    """What there is to be made: `items` are lists, objects and texts, of which names are some."""

    items: int = 0
    names: int = 0
    commas: int = 0
    slow_numbers: int = 0


def decode_bounded(
    decoder: msgspec.json.Decoder[Value], body: bytes, has_numbers: bool = False, share: int = 1
) -> Value:
    """Return what the decoder makes of the body; raise TooMuchJson, or what msgspec raises.

    A caller for whom many numbers are usual says so. One that decodes on the event loop, or many bodies in a
    row, gives itself a `share` of what is allowed.
    """
    if len(body) <= LIGHT_BYTES:
        return decoder.decode(body)
    weight = weigh(body, MOST_ITEMS // share, MOST_NAMES // share)
    most_values = MOST_NUMBERS if has_numbers else MOST_VALUES // share
    if weight.commas > most_values:
        raise TooMuchJson(f"the JSON has more than {weight.commas} values; allowed: at most {most_values}")
    if weight.commas <= MOST_VALUES and weight.slow_numbers <= _MOST_SLOW_NUMBERS:
        if len(body) <= _LARGE_BYTES:
            return decoder.decode(body)
        value = _any.decode(body)  # in two steps: what a message about a wrong text takes comes on top
    else:
        value = _read_slowly(body)
    return msgspec.convert(value, decoder.type, str_keys=True)


def decode_text(text: str) -> Any:
    """Return what is in JSON that is itself a text, such as the arguments of a call."""
    return decode_bounded(_any, text.encode())


def weigh(body: bytes, most_items: int = MOST_ITEMS, most_names: int = MOST_NAMES) -> Weight:
    """Return what is outside of texts, in one pass; raise TooMuchJson as soon as it is too much."""
    weight = Weight()
    inside, start = 0, _skim(body, weight)
    _check(weight, most_items, most_names)
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what follows belongs to it
            piece = body[start : start + _SLICE_BYTES + 1]
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[inside::2])
        _add(weight, outside, (len(parts) - inside) // 2)
        inside ^= (len(parts) - 1) & 1
        _check(weight, most_items, most_names)
    return weight


def _check(weight: Weight, most_items: int, most_names: int) -> None:
    if weight.items > most_items:
        raise TooMuchJson(f"the JSON has {weight.items} lists, objects and texts or more; "
                          f"allowed: at most {most_items}")  # fmt: skip
    if weight.names > most_names:
        raise TooMuchJson(f"the JSON has {weight.names} names or more; allowed: at most {most_names}")


def _skim(body: bytes, weight: Weight) -> int:
    """Add the texts that are found in a few steps, as in most bodies all are; return where to go on."""
    outside, texts, at = [], 0, 0
    begin = after = -1
    for _ in range(_FEW_QUOTES):
        found = body.find(b'"', after + 1)
        if found < 0:
            break
        after = found
        if begin < 0:
            begin = found
        elif not _is_escaped(body, found):
            outside.append(body[at:begin])
            texts, at, begin = texts + 1, found + 1, -1
    else:
        found = at
    if found < 0:
        outside.append(body[at : begin if begin >= 0 else len(body)])
        at = len(body)
    _add(weight, b"".join(outside), texts)
    return at


def _is_escaped(body: bytes, at: int) -> bool:
    first = at
    while body[first - 1] == _BACKSLASH:
        first -= 1
    return (at - first) % 2 == 1


def _add(weight: Weight, outside: bytes, texts: int) -> None:
    weight.items += texts + outside.count(b"[") + outside.count(b"{")
    weight.names += outside.count(b":")
    weight.commas += outside.count(b",")
    digits = outside.translate(_ALIKE, b".")
    weight.slow_numbers += digits.count(_EXPONENT) + digits.count(_MANY_DIGITS)
    if _LONGEST in digits:
        raise TooMuchJson(f"the JSON has a number of more than {MOST_DIGITS} digits")


def _read_slowly(body: bytes) -> Any:
    try:
        value = _decoder.decode(body.decode())
    except json.JSONDecodeError as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None
    if b"\\u" in body:
        _check_characters(value)
    return value


def _integer(text: str) -> int:
    return int(text)


def _fraction(text: str) -> float:
    return float(text)


def _not_json(text: str) -> Any:
    raise msgspec.DecodeError(f"JSON is malformed: {text} is no JSON")


# Functions of Python, not `int` and `float`: calling one is when another thread may take over.
_decoder = json.JSONDecoder(parse_int=_integer, parse_float=_fraction, parse_constant=_not_json)


def _check_characters(value: Any) -> None:
    """Refuse halves of characters, as msgspec does: they could not be written again."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise msgspec.DecodeError("JSON is malformed: half of a character in a text") from None
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_characters(name)
            _check_characters(each)
    elif isinstance(value, list):
        for each in value:
            if type(each) is not int:
                _check_characters(each)
