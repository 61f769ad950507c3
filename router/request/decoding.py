"""Turns bodies and query strings into checked values, and what is wrong with them into the API's words."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.bounded_json import LIGHT_BYTES, TooMuchJson, decode_bounded

Value = TypeVar("Value")
_MOST_QUERY_FIELDS = 50
_LONGEST_QUERY = 8192
_QUICK_BYTES = 256 << 10
_QUICK_COMMAS = 4096
SMALL_BYTES = 128 << 10
_SHARE_OF_SMALL = 4
_EXACT = 2.0**53
_LONGEST_FAULT = 300  # it may repeat what was sent
# What a decoder raises.
UNREADABLE = (RecursionError, UnicodeDecodeError, msgspec.DecodeError)
_any = msgspec.json.Decoder()


def decode(
    decoder: msgspec.json.Decoder[Value], body: bytes, has_numbers: bool = False, share: int = 1
) -> Value:
    """Return the checked body; where very many numbers are usual, `has_numbers`."""
    try:
        if len(body) <= LIGHT_BYTES:  # as most are
            return decoder.decode(body)
        return decode_bounded(decoder, body, has_numbers, share)
    except TooMuchJson as error:
        raise invalid(str(error)) from None
    except UNREADABLE as error:
        return _decode_again(decoder, body, error, has_numbers, share)


def _decode_again(
    decoder: msgspec.json.Decoder[Value], body: bytes, error: Exception, has_numbers: bool, share: int
) -> Value:
    """What some programs write and everybody understands: a byte order mark, and 96.0 where 96 is meant."""
    if body.startswith(BOM_UTF8):
        return decode(decoder, body[len(BOM_UTF8) :], has_numbers, share)
    problem = error
    if isinstance(error, msgspec.ValidationError) and "got `float`" in str(error):
        try:
            return msgspec.convert(_whole(decode_bounded(_any, body, has_numbers, share)), decoder.type)
        except UNREADABLE as second:
            problem = second
    raise unreadable(problem, decoder.type) from None


def _whole(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def decode_small(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value:
    """For bodies that are small by nature: tens of thousands of keys would hold up the event loop."""
    if len(body) > SMALL_BYTES:
        message = f"the body has {len(body)} bytes; allowed: at most {SMALL_BYTES} for this request"
        raise InflightError(ErrorKind.TOO_LARGE, message)
    return decode(decoder, body, share=_SHARE_OF_SMALL)


def unreadable(error: Exception, kind: Any) -> InflightError:
    if isinstance(error, RecursionError):
        return invalid("the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return invalid("the body is not valid UTF-8")
    if isinstance(error, msgspec.ValidationError):
        return explain(str(error), kind)
    return invalid(f"the body is not valid JSON: {error}")


def takes_long(body: bytes) -> bool:
    """Whether a large body does to be decoded; a few long texts do not, up to a size: they are copied."""
    return len(body) > _QUICK_BYTES or body.count(b",") > _QUICK_COMMAS


def decode_query(query: str, kind: type[Value]) -> Value:
    """Numbers and booleans may be written as text; a field given twice counts as its last value."""
    if len(query) > _LONGEST_QUERY:
        raise invalid(f"the query has {len(query)} characters; allowed: at most {_LONGEST_QUERY}")
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_QUERY_FIELDS))
    except ValueError:
        raise invalid(f"the query has more than {_MOST_QUERY_FIELDS} fields") from None
    if "%00" in query or "\0" in query:  # nothing that is stored has one, and PostgreSQL takes no such text
        raise invalid("the query has a NUL character (%00): leave it out")
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from None


def explain(problem: str, kind: Any = None) -> InflightError:
    """Turns msgspec's sentence into one that names the field first; `kind` is what was expected at all."""
    what, _, where = problem.partition(" - at `")
    what = what if len(what) <= _LONGEST_FAULT else f"{what[:_LONGEST_FAULT]}..."
    path = where.rpartition("$")[2].rstrip("`").lstrip(".")
    if what.startswith("Object contains unknown field"):
        field = ".".join(filter(None, [path, what.split("`")[1]]))
        return invalid(f"Unrecognized request argument supplied: {field}", field, "unknown_parameter")
    if what.startswith("Object missing required field"):
        field = ".".join(filter(None, [path, what.split("`")[1]]))
        return invalid(f"Missing required parameter: {field}", field, "missing_required_parameter")
    code = "invalid_type" if ", got `" in what else "invalid_value"
    what = what[0].lower() + what[1:]
    if what.startswith("invalid enum value") and (allowed := _choices(kind, path)):
        what = f"{what}; allowed: {', '.join(allowed)}"
    if where.startswith("key`"):
        what = f"a key: {what}"
    return invalid(f"{path}: {what}" if path else f"the body: {what}", path or None, code)


def _choices(kind: Any, path: str) -> list[str]:
    """What a field takes that takes only some words; none where that cannot be told from here."""
    for name in path.split("."):
        fields = get_type_hints(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else {}
        kind = fields.get(name)
    parts = (kind,) if get_origin(kind) is Literal else get_args(kind)
    return [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]


def invalid(message: str, param: str | None = None, code: str | None = None) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message, param, code=code)
