"""Tensors as clients send them, judged by the contract's tables and turned into plain values."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.elements import ELEMENT_BYTES, INTEGERS, LARGEST_FLOAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from python_backend.wire.tensors import Tensor

    Tensors: TypeAlias = Mapping[str, Tensor]

MAX_ROWS = 64
MAX_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Sent:
    """One input as it came: its bytes, or the elements that a typed field or JSON gave."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: bytes | list[Any]


@dataclass(frozen=True, slots=True)
class Value:
    """One input that may be sent on: elements in row-major order, a text as UTF-8."""

    dtype: str
    shape: tuple[int, ...]
    elements: list[Any]

    @property
    def rows(self) -> int:
        return self.shape[0]

    def row(self, index: int) -> list[Any]:
        width = len(self.elements) // self.rows
        return self.elements[index * width : (index + 1) * width]


Values = dict[str, Value]
Read = TypeVar("Read")


def by_name(tensors: Iterable[Tensor]) -> Tensors:
    return {tensor.name: tensor for tensor in tensors}


def read_inputs(known: Tensors, inputs: Sequence[Sent]) -> Values:
    """All of a request's inputs, or an error that names the first wrong one."""
    values = read_each(known, inputs, _read)
    check_rows({name: value.rows for name, value in values.items()})
    return values


def read_each(
    known: Tensors, inputs: Sequence[Sent], read: Callable[[Tensor, Sent], Read]
) -> dict[str, Read]:
    """None that is unknown, none twice, and none missing that must be there."""
    values: dict[str, Read] = {}
    for sent in inputs:
        tensor = known.get(sent.name)
        if tensor is None:
            raise refuse(f"there is no input '{shown(sent.name)}'; allowed are {', '.join(known)}")
        if sent.name in values:
            raise refuse(f"input '{sent.name}' is there twice", sent.name)
        if sent.dtype != tensor.dtype:
            why = f"input '{sent.name}' has type {shown(sent.dtype)}; allowed: {tensor.dtype}"
            raise refuse(why, sent.name)
        values[sent.name] = read(tensor, sent)
    for tensor in known.values():
        if not tensor.optional and tensor.name not in values:
            raise refuse(f"input '{tensor.name}' is missing", tensor.name)
    return values


def check_rows(rows: Mapping[str, int]) -> None:
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{name} has {count}" for name, count in rows.items())
        raise refuse(f"all inputs must have the same number of rows, the first of the shape: {found}")


def _read(tensor: Tensor, sent: Sent) -> Value:
    name = tensor.name
    shape = tuple(sent.shape)
    _check_shape(tensor, shape)
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise refuse(f"input '{name}' has {count} elements; allowed: up to {MAX_ELEMENTS}", name)
    elements = _from_bytes(tensor, count, sent.data) if isinstance(sent.data, bytes) else sent.data
    if len(elements) != count:
        raise refuse(f"input '{name}' has {len(elements)} elements; its shape says {count}", name)
    return Value(tensor.dtype, shape, checked(tensor, elements))


def _check_shape(tensor: Tensor, shape: tuple[int, ...]) -> None:
    wanted = (-1, *tensor.dims)
    fits = len(shape) == len(wanted) and all(
        0 <= given <= MAX_ELEMENTS and allowed in (-1, given)
        for given, allowed in zip(shape, wanted, strict=True)
    )
    if not fits or not 1 <= shape[0] <= MAX_ROWS:
        raise wrong_shape(tensor, shape, MAX_ROWS)


def wrong_shape(tensor: Tensor, shape: tuple[int, ...], max_rows: int) -> InflightError:
    """`max_rows` 0: the shape has no rows before the tensor's own dims."""
    given = list(shape) if len(shape) <= 8 else f"of {len(shape)} dimensions"
    allowed = [-1, *tensor.dims] if max_rows else list(tensor.dims)
    rows = f", the first number being rows, 1 to {max_rows}" if max_rows else ""
    return refuse(f"input '{tensor.name}' has shape {given}; allowed: {allowed}{rows}", tensor.name)


def _from_bytes(tensor: Tensor, count: int, raw: bytes) -> list[Any]:
    if tensor.dtype != "BYTES" and len(raw) != count * ELEMENT_BYTES[tensor.dtype]:
        expected = count * ELEMENT_BYTES[tensor.dtype]
        raise refuse(f"input '{tensor.name}' has {len(raw)} bytes; its shape says {expected}", tensor.name)
    try:
        return codec.decode(tensor.dtype, raw)
    except (ValueError, struct.error):
        raise refuse(
            f"input '{tensor.name}': each element is its length in 4 bytes, little-endian, and so many bytes",
            tensor.name,
        ) from None


def checked(tensor: Tensor, elements: list[Any]) -> list[Any]:
    name, dtype = tensor.name, tensor.dtype
    if dtype == "BYTES":
        return [_text(name, element) for element in elements]
    if dtype == "BOOL":
        if not all(isinstance(element, bool) for element in elements):
            raise refuse(f"input '{name}': allowed are true and false", name)
    elif dtype in INTEGERS:
        low, high = INTEGERS[dtype]
        if not all(type(element) is int and low <= element <= high for element in elements):
            raise refuse(f"input '{name}': allowed are whole numbers from {low} to {high}", name)
    else:
        most = LARGEST_FLOAT[dtype]
        # Not a number is not at most anything.
        if not all(type(element) in (int, float) and abs(element) <= most for element in elements):
            raise refuse(f"input '{name}': allowed are numbers from {-most:g} to {most:g}", name)
    return elements


def _text(name: str, element: Any) -> bytes:
    try:
        if isinstance(element, str):
            return element.encode()
        if isinstance(element, bytes):
            element.decode()
            return element
    except UnicodeError:
        raise refuse(f"input '{name}' is not valid UTF-8", name) from None
    raise refuse(f"input '{name}': allowed are texts", name)


def shown(name: str) -> str:
    """A client's own word, short and harmless."""
    start = name[:64]
    return start if start.isprintable() else start.encode("unicode_escape").decode()


def refuse(message: str, param: str | None = None) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message, param)
