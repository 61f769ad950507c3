"""Turns bodies and query strings into checked values, and what is wrong with them into the API's words."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError

Value = TypeVar("Value")
_MOST_QUERY_FIELDS = 50
# Each takes a hundred times the time and memory of as much text, and nothing else runs while JSON is decoded.
MOST_CONTAINERS = 1 << 16
_MANY = 256
_QUICK_BYTES = 256 << 10
SMALL_BYTES = 128 << 10
_TOO_DEEP = b"[" * MOST_CONTAINERS
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# What a decoder raises.
UNREADABLE = (RecursionError, UnicodeDecodeError, msgspec.DecodeError)


def decode(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value:
    if len(body) > MOST_CONTAINERS:
        check_containers(body)
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        return decode_again(decoder, body, error)


def decode_again(decoder: msgspec.json.Decoder[Value], body: bytes, error: Exception) -> Value:
    """What some programs write and everybody understands: a byte order mark, and 96.0 where 96 is meant."""
    if body.startswith(BOM_UTF8):
        return decode(decoder, body[len(BOM_UTF8) :])
    problem = error
    if isinstance(error, msgspec.ValidationError) and "got `float`" in str(error):
        try:
            return msgspec.convert(_whole(msgspec.json.decode(body)), decoder.type)
        except UNREADABLE as second:
            problem = second
    raise unreadable(problem, decoder.type) from None


def _whole(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def decode_small(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value:
    """For bodies that are small by nature: tens of thousands of keys would hold up the event loop."""
    if len(body) > SMALL_BYTES:
        message = f"the body has {len(body)} bytes; allowed: at most {SMALL_BYTES} for this request"
        raise InflightError(ErrorKind.TOO_LARGE, message)
    return decode(decoder, body)


def unreadable(error: Exception, kind: Any) -> InflightError:
    if isinstance(error, RecursionError):
        return invalid("the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return invalid("the body is not valid UTF-8")
    if isinstance(error, msgspec.ValidationError):
        return explain(str(error), kind)
    return invalid(f"the body is not valid JSON: {error}")


def check_containers(body: bytes) -> None:
    """Refuses JSON with more lists and objects than are decoded in a moment; those in texts do not count."""
    # Nearly all have a few, which are found at a fraction of the time that counting takes.
    if not (_has_many(body, b"[") or _has_many(body, b"{")):
        return
    if body.count(b"[") + body.count(b"{") <= MOST_CONTAINERS:
        return
    outside = _STRING.sub(b"", body).partition(_TOO_DEEP)[0]  # where the decoder gives up
    found = outside.count(b"[") + outside.count(b"{")
    if found > MOST_CONTAINERS:
        raise invalid(f"the JSON has {found} lists and objects; allowed: at most {MOST_CONTAINERS}")


def takes_long(body: bytes) -> bool:
    """Whether a large body does to be decoded; a few long texts do not, up to a size: they are copied."""
    return len(body) > _QUICK_BYTES or _has_many(body, b"{")


def _has_many(body: bytes, mark: bytes) -> bool:
    at = -1
    for _ in range(_MANY):
        at = body.find(mark, at + 1)
        if at < 0:
            return False
    return True


def decode_query(query: str, kind: type[Value]) -> Value:
    """Numbers and booleans may be written as text; a field given twice counts as its last value."""
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
