"""Tensors as clients send them, checked against the contract or the model's config."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import ne
from typing import Any, TypeVar

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import Tensor

Tensors = Mapping[str, Tensor]
ELEMENT_BYTES = {
    "BOOL": 1,
    "BF16": 2,
    **{f"{kind}{bits}": bits // 8 for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": bits // 8 for bits in (16, 32, 64)},
}
INTEGERS = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
LARGEST_FLOAT = {
    "FP16": 65504.0,
    "FP32": struct.unpack("<f", b"\xff\xff\x7f\x7f")[0],
    "FP64": struct.unpack("<d", b"\xff\xff\xff\xff\xff\xff\xef\x7f")[0],
}
# What our own models have no use for. BF16 is in neither: nobody writes it as numbers.
_BEYOND_OURS = {"UINT16": "H", "UINT32": "I", "INT8": "b", "INT16": "h", "FP64": "d"}
_LENGTH = struct.Struct("<I")


def encode(dtype: str, elements: Sequence[Any]) -> bytes:
    code = _BEYOND_OURS.get(dtype)
    if code is None:
        return codec.encode(dtype, elements)
    return codec.pack(code, elements)


def decode(dtype: str, raw: bytes) -> list[Any]:
    code = _BEYOND_OURS.get(dtype)
    if code is None:
        return codec.decode(dtype, raw)
    return codec.unpack(code, raw)


def is_whole(dtype: str, count: int, raw: bytes) -> bool:
    """Whether the bytes are those of so many elements, no more and no less."""
    if dtype != "BYTES":
        return len(raw) == count * ELEMENT_BYTES[dtype]
    return _texts_in(raw) == count


def _texts_in(raw: bytes) -> int | None:
    """None where the bytes do not end with one."""
    position = found = 0
    while position + _LENGTH.size <= len(raw):
        position += _LENGTH.size + _LENGTH.unpack_from(raw, position)[0]
        found += 1
    return found if position == len(raw) else None


MAX_ROWS = 64
MAX_ELEMENTS = 1 << 20  # of an input that is read as values
_MOST_ELEMENTS = 2**31 - 1  # more would overflow what backends count elements in


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


def read_inputs(known: Tensors, inputs: Sequence[Sent], max_rows: int = MAX_ROWS) -> Values:
    """All of a request's inputs, or an error that names the first wrong one."""
    values = read_each(known, inputs, partial(_read, max_rows))
    if max_rows:
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
            raise refuse(f"input '{shown(sent.name)}' does not exist; allowed are {', '.join(known)}")
        if sent.name in values:
            raise refuse(f"input '{sent.name}' is given twice", sent.name)
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


def _read(max_rows: int, tensor: Tensor, sent: Sent) -> Value:
    shape = tuple(sent.shape)
    _check_shape(tensor, shape, max_rows)
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        why = f"input '{tensor.name}' has {count} elements; allowed: up to {MAX_ELEMENTS}"
        raise refuse(why, tensor.name)
    elements = sent.data
    if isinstance(elements, bytes):
        _check_bytes(tensor, count, elements)
        elements = codec.decode(tensor.dtype, elements)
    _check_count(tensor, count, len(elements))
    return Value(tensor.dtype, shape, checked(tensor, elements))


def _check_shape(tensor: Tensor, shape: tuple[int, ...], max_rows: int) -> None:
    """`max_rows` 0: the shape has no rows before the tensor's own dims."""
    dims = [-1, *tensor.dims] if max_rows else list(tensor.dims)
    fits = len(shape) == len(dims) and all(
        given >= 0 and allowed in (-1, given) for given, allowed in zip(shape, dims, strict=True)
    )
    # A size of 0 would hide what the others come to.
    fits = fits and math.prod(size for size in shape if size) <= _MOST_ELEMENTS
    if not fits or (max_rows and not 1 <= shape[0] <= max_rows):
        given = list(shape) if len(shape) <= 8 else f"of {len(shape)} dimensions"
        rows = f", the first number being rows, 1 to {max_rows}" if max_rows else ""
        raise refuse(f"input '{tensor.name}' has shape {given}; allowed: {dims}{rows}", tensor.name)


def _check_count(tensor: Tensor, count: int, found: int) -> None:
    if found != count:
        raise refuse(f"input '{tensor.name}' has {found} elements; its shape says {count}", tensor.name)


def _check_bytes(tensor: Tensor, count: int, raw: bytes) -> None:
    name = tensor.name
    if tensor.dtype != "BYTES":
        expected = count * ELEMENT_BYTES[tensor.dtype]
        if len(raw) != expected:
            raise refuse(f"input '{name}' has {len(raw)} bytes; its shape says {expected}", name)
    elif (found := _texts_in(raw)) is not None:
        _check_count(tensor, count, found)
    else:
        each = "each its length in 4 bytes, little-endian, and so many bytes"
        raise refuse(f"input '{name}': its shape says {count} elements, {each}", name)


def checked(tensor: Tensor, elements: list[Any]) -> list[Any]:
    name, dtype = tensor.name, tensor.dtype
    if dtype == "BYTES":
        return [_text(name, element) for element in elements]
    for some in codec.slices(elements):
        _check_numbers(name, dtype, some)
    return elements


def _check_numbers(name: str, dtype: str, elements: Sequence[Any]) -> None:
    if dtype == "BOOL":
        if not set(map(type, elements)) <= {bool}:
            raise refuse(f"input '{name}': allowed are true and false", name)
    elif dtype in INTEGERS:
        low, high = INTEGERS[dtype]
        are_whole = set(map(type, elements)) <= {int}
        if not are_whole or (elements and not low <= min(elements) <= max(elements) <= high):
            raise refuse(f"input '{name}': allowed are whole numbers from {low} to {high}", name)
    else:
        most = LARGEST_FLOAT[dtype]
        if not _are_numbers(elements, most):
            raise refuse(f"input '{name}': allowed are numbers from {-most:g} to {most:g}", name)


def _are_numbers(elements: Sequence[Any], most: float) -> bool:
    """Whether each is a number from -most to most; three passes that no Python code runs in."""
    if not set(map(type, elements)) <= {int, float}:
        return False
    # What is not a number is not even itself, and would hide from min and max.
    if not elements or any(map(ne, elements, elements)):
        return not elements
    return bool(-most <= min(elements) <= max(elements) <= most)


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


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One input that may be sent on: bytes as Triton reads them, whose length fits the shape."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes


RawTensors = dict[str, RawTensor]


def read_tensors(known: Tensors, max_batch_size: int, inputs: Sequence[Sent]) -> RawTensors:
    """All of a request's inputs in the order of the config, or an error that names the first wrong one."""
    found = read_each(known, inputs, partial(_read_raw, max_batch_size))
    if max_batch_size:
        check_rows({name: tensor.shape[0] for name, tensor in found.items()})
    return {name: found[name] for name in known if name in found}


def _read_raw(max_batch_size: int, tensor: Tensor, sent: Sent) -> RawTensor:
    shape = tuple(sent.shape)
    _check_shape(tensor, shape, max_batch_size)
    count = math.prod(shape)
    raw = sent.data if isinstance(sent.data, bytes) else _from_elements(tensor, count, sent.data)
    _check_bytes(tensor, count, raw)
    if tensor.dtype == "BOOL" and raw.translate(None, b"\x00\x01"):
        raise refuse(f"input '{tensor.name}': allowed are the bytes 0 and 1", tensor.name)
    return RawTensor(tensor.dtype, shape, raw)


def _from_elements(tensor: Tensor, count: int, elements: list[Any]) -> bytes:
    name = tensor.name
    if tensor.dtype == "BF16":
        raise refuse(f"input '{name}': BF16 is sent as bytes, not as numbers", name)
    _check_count(tensor, count, len(elements))
    if tensor.dtype != "BYTES":
        return encode(tensor.dtype, checked(tensor, elements))
    if not all(isinstance(element, str | bytes) for element in elements):
        raise refuse(f"input '{name}': allowed are texts", name)
    try:
        return encode("BYTES", elements)
    except UnicodeError:
        raise refuse(f"input '{name}' is not valid UTF-8", name) from None
