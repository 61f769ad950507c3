"""Quantised safetensors: each matrix is several tensors on disk, and one under its usual name here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.checkpoint.grouped import Grouped, Matrix, Numbers, Weights
from python_backend.engine.checkpoint.safetensors_files import SafetensorsFiles
from python_backend.engine.checkpoint.source import unusable
from python_backend.engine.formats import Scheme

# Where AutoAWQ puts eight neighbouring outputs into a word: output i is its nibble number _AWQ_PLACES[i].
_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
# Twice what the 16 codes of e2m1 stand for.
_E2M1_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_BESIDE = ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx",
           "weight_global_scale", "input_scale", "input_zero_point", "input_global_scale", "activation_scale",
           "output_scale", "scales", "qzeros", "g_idx", "k_scale", "v_scale")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stored:
    """A matrix: its tensors' names (`parts`), its shape, and how it is read."""

    stem: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    read: Callable[[str], Matrix]


class QuantizedFiles:
    """A `TensorSource` over another, by what the scheme says of it."""

    def __init__(self, files: SafetensorsFiles, scheme: Scheme) -> None:
        self._files = files
        self._scheme = scheme
        self.config = files.config
        self._raw = frozenset(files.names())
        self._stored = dict(self._find())
        taken = {part for stored in self._stored.values() for part in stored.parts}
        self._plain = [name for name in self._raw if name not in taken]

    def names(self) -> Iterable[str]:
        return [*self._plain, *self._stored]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[name].shape if name in self._stored else self._files.shape(name)

    def stored_bytes(self, name: str) -> int:
        if name not in self._stored:
            return self._files.stored_bytes(name)
        return sum(self._files.stored_bytes(part) for part in self._stored[name].parts)

    def is_grouped(self, name: str) -> bool:
        return name in self._stored

    def matrix(self, name: str) -> Matrix:
        if name not in self._stored:
            return self._files.read(name)
        stored = self._stored[name]
        found = stored.read(stored.stem)
        if found.shape != stored.shape:
            raise unusable(f"the tensors of {name} make {found.shape}; {stored.shape} was expected")
        return found

    def _find(self) -> Iterable[tuple[str, _Stored]]:
        for name in sorted(self._raw):
            stem, _, kind = name.rpartition(".")
            if kind == "weight" and self._has_scale(stem):
                yield name, self._located(stem, name, self._files.shape(name), self._scaled)
            elif kind == "weight_packed":
                yield f"{stem}.weight", self._located(stem, name, self._packed_shape(stem), self._packed)
            elif kind == "qweight":
                yield f"{stem}.weight", self._located(stem, name, *self._by_words(stem))
            elif name.endswith("_blocks"):
                whole = name.removesuffix("_blocks")
                *rows, groups, width = self._files.shape(name)
                shape = (*rows, groups * width * 2)
                yield f"{whole}.weight", _Stored(whole, (name, f"{whole}_scales"), shape, self._mxfp4_blocks)

    def _has_scale(self, stem: str) -> bool:
        return f"{stem}.weight_scale" in self._raw or f"{stem}.weight_scale_inv" in self._raw

    def _located(
        self, stem: str, name: str, shape: tuple[int, ...], read: Callable[[str], Matrix]
    ) -> _Stored:
        beside = [f"{stem}.{kind}" for kind in _BESIDE if f"{stem}.{kind}" in self._raw]
        return _Stored(stem, (name, *beside), shape, read)

    def _packed_shape(self, stem: str) -> tuple[int, ...]:
        if f"{stem}.weight_shape" in self._raw:
            return tuple(int(side) for side in self._array(f"{stem}.weight_shape"))
        rows, width = self._files.shape(f"{stem}.weight_packed")  # two e2m1 in each byte
        return rows, 2 * width

    def _by_words(self, stem: str) -> tuple[tuple[int, ...], Callable[[str], Matrix]]:
        first, second = self._files.shape(f"{stem}.qweight")
        in_word = 32 // self._scheme.bits
        if self._scheme.method == "awq":
            return (second * in_word, first), self._awq
        return (second, first * in_word), self._gptq

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self._raw:
            raise unusable(f"the quantised checkpoint lacks tensor {name}")
        return self._files.array(name)

    def _floats(self, name: str) -> Weights:
        if name not in self._raw:
            raise unusable(f"the quantised checkpoint lacks tensor {name}")
        return self._files.read(name)

    def _scaled(self, stem: str) -> Matrix:
        """Entries of their own (e4m3 or int8), with scales for all, for each row, in groups or in blocks."""
        levels = self._array(f"{stem}.weight")
        if levels.dtype not in (np.int8, np.uint8):
            return self._files.read(f"{stem}.weight")
        inverse = f"{stem}.weight_scale_inv"
        scales = self._floats(inverse if inverse in self._raw else f"{stem}.weight_scale")
        numbers = Numbers.INT8 if levels.dtype == np.int8 else Numbers.E4M3
        offsets = None
        if f"{stem}.weight_zero_point" in self._raw:
            zeros = self._array(f"{stem}.weight_zero_point").astype(np.float32)
            offsets = _spread(-zeros * scales.reshape(zeros.shape), levels.shape)
        return _grouped(numbers, levels, _spread(scales, levels.shape), offsets)

    def _packed(self, stem: str) -> Matrix:
        """compressed-tensors' `*-pack-quantized`."""
        packed = self._array(f"{stem}.weight_packed")
        if packed.dtype == np.uint8:
            return self._packed_floats(stem, packed)
        rows, columns = self._packed_shape(stem)
        bits = 32 * packed.shape[1] // columns
        half, scales = 1 << (bits - 1), self._floats(f"{stem}.weight_scale").reshape(rows, -1)
        levels = (_unpacked(packed, bits)[:, :columns] - np.uint8(half)).view(np.int8)
        offsets = None
        if f"{stem}.weight_zero_point" in self._raw:
            words = self._array(f"{stem}.weight_zero_point")
            zeros = _unpacked(np.ascontiguousarray(words.T), bits)[:, :rows].T
            offsets = (half - zeros.astype(np.float32)) * scales
        numbers = Numbers.INT4 if bits == 4 else Numbers.INT8
        return self._ordered(f"{stem}.weight_g_idx", numbers, levels, scales, offsets)

    def _packed_floats(self, stem: str, packed: NDArray[np.uint8]) -> Matrix:
        levels = _E2M1_LEVELS[_nibbles(packed)]
        if f"{stem}.weight_global_scale" in self._raw:  # nvfp4
            scales = self._floats(f"{stem}.weight_scale") / self._floats(f"{stem}.weight_global_scale")
        else:
            scales = _powers_of_two(self._array(f"{stem}.weight_scale"))
        return Grouped(Numbers.E2M1, levels, (scales / 2).astype(np.float32))

    def _awq(self, stem: str) -> Matrix:
        def in_order(name: str) -> NDArray[np.uint8]:
            """(inputs or groups, words of outputs) as (outputs, inputs or groups)."""
            found = _unpacked(self._array(name), 4)
            placed = found.reshape(len(found), -1, 8)[:, :, _AWQ_PLACES].reshape(found.shape)
            return np.ascontiguousarray(placed.T)

        scales = np.ascontiguousarray(self._floats(f"{stem}.scales").T)
        levels = (in_order(f"{stem}.qweight") - np.uint8(8)).view(np.int8)
        offsets = None
        if f"{stem}.qzeros" in self._raw:
            offsets = (8 - in_order(f"{stem}.qzeros").astype(np.float32)) * scales
        return _grouped(Numbers.INT4, levels, scales, offsets)

    def _gptq(self, stem: str) -> Matrix:
        bits = self._scheme.bits
        half = 1 << (bits - 1)
        words = np.ascontiguousarray(self._array(f"{stem}.qweight").T)
        levels = (_unpacked(words, bits) - np.uint8(half)).view(np.int8)
        scales = np.ascontiguousarray(self._floats(f"{stem}.scales").T)
        zeros = _unpacked(self._array(f"{stem}.qzeros"), bits).astype(np.float32) + self._scheme.zero_offset
        offsets = (half - zeros.T[: len(scales)]) * scales
        numbers = Numbers.INT4 if bits == 4 else Numbers.INT8
        return self._ordered(f"{stem}.g_idx", numbers, levels, scales, offsets)

    def _mxfp4_blocks(self, whole: str) -> Matrix:
        """gpt-oss: (experts, outputs, groups, 16 bytes), and an exponent for each group."""
        packed = self._array(f"{whole}_blocks")
        levels = _E2M1_LEVELS[_nibbles(packed)].reshape(*packed.shape[:2], -1)
        return Grouped(Numbers.E2M1, levels, _powers_of_two(self._array(f"{whole}_scales")) / 2)

    def _ordered(
        self,
        order_name: str,
        numbers: Numbers,
        levels: NDArray[Any],
        scales: Weights,
        offsets: Weights | None,
    ) -> Matrix:
        """Inputs whose groups are scattered (`desc_act`) have none side by side: they are written out."""
        columns = levels.shape[1]
        order = self._array(order_name) if order_name in self._raw else None
        in_turn = np.arange(columns) // max(1, columns // scales.shape[1])
        if order is None or (order < 0).all() or np.array_equal(order, in_turn):
            return _grouped(numbers, levels, scales, offsets)
        values = levels.astype(np.float32) * scales[:, order]
        return values if offsets is None else values + offsets[:, order]


def _grouped(numbers: Numbers, levels: NDArray[Any], scales: Weights, offsets: Weights | None) -> Matrix:
    if offsets is not None and not offsets.any():
        offsets = None
    if levels.shape[1] % scales.shape[1]:
        raise unusable(f"{levels.shape[1]} inputs are not made of {scales.shape[1]} groups")
    return Grouped(numbers, levels, np.ascontiguousarray(scales, np.float32), offsets)


def _spread(scales: Weights, shape: tuple[int, ...]) -> Weights:
    """(rows, groups) from one for all, one for each row, or one for each block of rows and columns.

    The last block of either side may be a part of one; blocks are square or powers of two wide.
    """
    rows, columns = shape
    if scales.size == 1:
        return np.full((rows, 1), scales.reshape(()), np.float32)
    if scales.ndim == 1 or (scales.shape[1] == 1 and scales.shape[0] == rows):
        return scales.reshape(rows, 1)
    block_rows = 1 if scales.shape[0] == rows else _block(rows, scales.shape[0])
    block_columns = _block(columns, scales.shape[1])
    by_row = scales.repeat(block_rows, 0)[:rows]
    if columns % block_columns == 0:
        return by_row
    narrow = int(np.gcd(columns, block_columns))
    return by_row.repeat(block_columns // narrow, 1)[:, : columns // narrow]


def _block(size: int, count: int) -> int:
    """How wide blocks are of which `count` cover `size`: 128 wherever that fits."""
    if -(-size // 128) == count:
        return 128
    return -(-size // count)


def _unpacked(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Unsigned levels along the last axis, the lowest bits of a word first."""
    found: NDArray[np.uint8] = np.ascontiguousarray(words).view(np.uint8)
    return found if bits == 8 else _nibbles(found)


def _nibbles(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pairs = np.stack((octets & 15, octets >> 4), axis=-1)
    flat: NDArray[np.uint8] = pairs.reshape(*octets.shape[:-1], -1)
    return flat


def _powers_of_two(exponents: NDArray[np.uint8]) -> Weights:
    powers: Weights = np.exp2(exponents.astype(np.float32) - 127).astype(np.float32)
    return powers
