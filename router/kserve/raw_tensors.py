"""Tensors for models whose meaning is not ours to know: checked by their config, and sent on as bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from router.kserve.elements import ELEMENT_BYTES, encode, is_whole
from router.kserve.tensors import check_rows, checked, read_each, refuse, wrong_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from python_backend.wire.tensors import Tensor
    from router.kserve.tensors import Sent, Tensors

# More would overflow what backends count elements in.
_MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One input that may be sent on: bytes as Triton reads them, whose length fits the shape."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes


RawTensors = dict[str, RawTensor]


def read_tensors(known: Tensors, max_batch_size: int, inputs: Sequence[Sent]) -> RawTensors:
    """All of a request's inputs in the order of the config, or an error that names the first wrong one."""
    found = read_each(known, inputs, partial(_read, max_batch_size))
    if max_batch_size:
        check_rows({name: tensor.shape[0] for name, tensor in found.items()})
    return {name: found[name] for name in known if name in found}


def _read(max_batch_size: int, tensor: Tensor, sent: Sent) -> RawTensor:
    shape = tuple(sent.shape)
    if not _fits(tensor, shape, max_batch_size):
        raise wrong_shape(tensor, shape, max_batch_size)
    count = math.prod(shape)
    raw = sent.data if isinstance(sent.data, bytes) else _from_elements(tensor, count, sent.data)
    if not is_whole(tensor.dtype, count, raw):
        raise _wrong_bytes(tensor, count, raw)
    if tensor.dtype == "BOOL" and raw.translate(None, b"\x00\x01"):
        raise refuse(f"input '{tensor.name}': allowed are the bytes 0 and 1", tensor.name)
    return RawTensor(tensor.dtype, shape, raw)


def _fits(tensor: Tensor, shape: tuple[int, ...], max_batch_size: int) -> bool:
    dims = (-1, *tensor.dims) if max_batch_size else tensor.dims
    if len(shape) != len(dims):
        return False
    if any(given < 0 or allowed not in (-1, given) for given, allowed in zip(shape, dims, strict=True)):
        return False
    # A size of 0 would hide what the others come to.
    if math.prod(size for size in shape if size) > _MOST_ELEMENTS:
        return False
    return not max_batch_size or 1 <= shape[0] <= max_batch_size


def _from_elements(tensor: Tensor, count: int, elements: list[Any]) -> bytes:
    name = tensor.name
    if tensor.dtype == "BF16":
        raise refuse(f"input '{name}': BF16 is sent as bytes, not as numbers", name)
    if len(elements) != count:
        raise refuse(f"input '{name}' has {len(elements)} elements; its shape says {count}", name)
    if tensor.dtype != "BYTES":
        return encode(tensor.dtype, checked(tensor, elements))
    if not all(isinstance(element, str | bytes) for element in elements):
        raise refuse(f"input '{name}': allowed are texts", name)
    try:
        return encode("BYTES", elements)
    except UnicodeError:
        raise refuse(f"input '{name}' is not valid UTF-8", name) from None


def _wrong_bytes(tensor: Tensor, count: int, raw: bytes) -> Exception:
    name = tensor.name
    if tensor.dtype == "BYTES":
        each = "each its length in 4 bytes, little-endian, and so many bytes"
        return refuse(f"input '{name}': its shape says {count} elements, {each}", name)
    expected = count * ELEMENT_BYTES[tensor.dtype]
    return refuse(f"input '{name}' has {len(raw)} bytes; its shape says {expected}", name)
