"""Refuses protobufs with more parts than are parsed in a moment: parsing holds the interpreter to its end."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from router.core.bounded_json import MOST_NUMBERS
from router.kserve.tensors import refuse

MOST_FIELDS = 1 << 16
# A message, of which a map has one for each of its pairs, takes ten times as long as a number or a text.
_FIELDS_A_MESSAGE = 8
_LIGHT_BYTES = 1 << 16
_MOST_VARINT_BYTES = 10
_HIGH = bytes(range(128, 256))
_PLAIN_BYTES = {1: 8, 5: 4}  # by wire type: fixed64 and fixed32
_VARINT, _SIZED = 0, 2
_BY_VARINT = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
    FieldDescriptor.CPPTYPE_BOOL,
    FieldDescriptor.CPPTYPE_ENUM,
}


def check_weight(kind: type[Any], raw: bytes) -> None:
    """Raise for more fields than MOST_FIELDS, or more numbers than MOST_NUMBERS, at all depths together.

    What is no such message is left to the parser, which says so.
    """
    if len(raw) <= _LIGHT_BYTES:
        return
    fields = numbers = 0
    parts: list[tuple[Descriptor, int, int]] = [(kind.DESCRIPTOR, 0, len(raw))]
    while parts:
        descriptor, at, end = parts.pop()
        known = descriptor.fields_by_number
        while at < end:
            tag, at = _varint(raw, at)
            fields += 1
            if (wire := tag & 7) == _VARINT:
                _, at = _varint(raw, at)
            elif wire == _SIZED:
                size, at = _varint(raw, at)
                field = known.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    fields += _FIELDS_A_MESSAGE
                    parts.append((field.message_type, at, min(at + size, end)))
                elif field is not None and field.cpp_type in _BY_VARINT:
                    numbers += len(raw[at : at + size].translate(None, _HIGH))
                at += size
            else:
                at += _PLAIN_BYTES.get(wire, end)
            if fields > MOST_FIELDS:
                raise refuse(f"the message has {fields} parts or more; allowed: at most {MOST_FIELDS}")
            if numbers > MOST_NUMBERS:
                raise refuse(
                    f"the message has {numbers} numbers in contents and shapes; allowed: at most "
                    f"{MOST_NUMBERS}; send them in raw_input_contents"
                )


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends; the end of all where there is none."""
    value = shift = 0
    for byte in raw[at : at + _MOST_VARINT_BYTES]:
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, len(raw)
