"""Quantised matrices on the device, kept as they are stored: 4 or 8 bits a weight, 16 an activation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from python_backend.engine.cuda.fp8 import Fp8Linear, suits_fp8
from python_backend.engine.cuda.kernels.grouped import GroupedArrays, grouped_product, written_out
from python_backend.engine.cuda.kernels.grouped_matvec import grouped_matvec
from python_backend.engine.cuda.kernels.grouped_numbers import E2M1_WORDS, IN_BYTES, INT4_WORDS
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.models.decoder import Grouped, Numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Unpack

    from python_backend.engine.cuda.kernels.matvec import Around

# What the tensor cores multiply at a time, at the least and as far as it pays.
_SHORTEST_STRETCH, _LONGEST_STRETCH = 16, 128
_LONGEST_OF_WORDS = 32
# Fewer rows are multiplied by the levels, however much memory there is: reading is what counts.
_ROWS_BY_LEVELS = 128
# From so many rows on, writing the matrix out costs less than a library's product gains.
_ROWS_TO_WRITE_OUT = 1024
# Products into the residual come in parts, as far as those are fewer bytes than the matrix.
_ROWS_IN_PARTS = 512
# Scales of such groups are kept in fp32, which kernels read ahead; in halfs those of narrower ones cost less.
_WIDE_GROUP = 64
# The smallest and the largest number that a half has with all its bits.
_HALF_RANGE = 2.0**-14, 65504.0
_LAYOUTS = {Numbers.INT4: INT4_WORDS, Numbers.E2M1: E2M1_WORDS}


class GroupedLinear(Linear):
    """y = x Wᵀ + b, where W is quantised in groups and x is not.

    Many rows are a matter of arithmetic: where there is a copy of W in their own type, that has them.
    """

    def __init__(self, matrix: GroupedArrays, bias: torch.Tensor | None = None) -> None:
        self._matrix = matrix
        self._copy: Linear | None = None
        self.bias = bias
        self.outputs, self.inputs = matrix.outputs, matrix.length

    def keep_copy(self, dtype: torch.dtype) -> None:
        self._copy = Linear(written_out(self._matrix, dtype), self.bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._copy is not None and len(rows) > _ROWS_BY_LEVELS:
            return self._copy(rows)
        if len(rows) < _ROWS_TO_WRITE_OUT:
            return grouped_product(rows, self._matrix, self.bias)
        return Linear(written_out(self._matrix, rows.dtype), self.bias)(rows)

    def onto(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
        """Parts of y where rows are few: whoever adds them reads y anyway."""
        if self._copy is not None and len(rows) > _ROWS_BY_LEVELS:
            return self._copy.onto(hidden, rows)
        if self.bias is None and len(rows) <= _ROWS_IN_PARTS:
            return grouped_product(rows, self._matrix, in_parts=True)
        return self(rows)

    def times_row(self, row: torch.Tensor, out: torch.Tensor, **around: Unpack[Around]) -> None:
        grouped_matvec(row, self._matrix, out, bias=self.bias, **around)


def keep_grouped(matrix: Grouped, device: torch.device) -> GroupedArrays | None:
    """The matrix as the kernels read it; None where it is to be written out instead."""
    stretch = math.gcd(matrix.group, _LONGEST_STRETCH)
    if stretch < _SHORTEST_STRETCH or (matrix.numbers is Numbers.E4M3 and not _reads_e4m3(device)):
        return None
    if matrix.numbers in _LAYOUTS:
        stretch = min(stretch, _LONGEST_OF_WORDS)
        levels = _words(matrix, stretch)
    else:
        levels = np.ascontiguousarray(matrix.levels)
    placed = torch.from_numpy(levels).to(device)
    sizes = [matrix.scales] if matrix.offsets is None else [matrix.scales, matrix.offsets]
    is_narrow = matrix.group < _WIDE_GROUP
    dtype = torch.float16 if is_narrow and all(map(_fits_half, sizes)) else torch.float32
    scales, *offsets = (
        torch.from_numpy(np.ascontiguousarray(size.swapaxes(-1, -2))).to(dtype).to(device) for size in sizes
    )
    return GroupedArrays(
        placed.view(torch.float8_e4m3fn) if matrix.numbers is Numbers.E4M3 else placed,
        scales,
        offsets[0] if offsets else None,
        _LAYOUTS.get(matrix.numbers, IN_BYTES).value,
        matrix.shape[-2],
        matrix.shape[-1],
        matrix.group,
        stretch,
    )


def make_grouped(matrix: Grouped, bias: torch.Tensor | None, device: torch.device) -> Linear | None:
    """A product with the matrix as it is stored; None where it is to be written out instead.

    e4m3 with a scale for each row is what the GPU multiplies by itself.
    """
    if matrix.numbers is Numbers.E4M3 and matrix.scales.shape[1] == 1 and suits_fp8(matrix.shape, device):
        codes = torch.from_numpy(np.ascontiguousarray(matrix.levels)).to(device)
        scales = torch.from_numpy(np.ascontiguousarray(matrix.scales[:, 0])).to(device)
        return Fp8Linear(codes.view(torch.float8_e4m3fn), scales, bias)
    kept = keep_grouped(matrix, device)
    return None if kept is None else GroupedLinear(kept, bias)


def keep_copies(linears: Iterable[Linear], dtype: torch.dtype, room_bytes: int) -> bool:
    """Has those among these that are quantised in groups written out, too, if there is room for all."""
    grouped = [linear for linear in linears if isinstance(linear, GroupedLinear)]
    needed_bytes = sum(linear.outputs * linear.inputs for linear in grouped) * dtype.itemsize
    if needed_bytes > room_bytes:
        return False
    for linear in grouped:
        linear.keep_copy(dtype)
    return True


def _reads_e4m3(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def _fits_half(sizes: NDArray[np.float32]) -> bool:
    """Whether nothing is lost but the bits that a half does not have."""
    found = np.abs(sizes)
    least, most = _HALF_RANGE
    return bool(((found == 0) | ((found >= least) & (found <= most))).all())


def _words(matrix: Grouped, stretch: int) -> NDArray[np.int16]:
    """(…, outputs, words): see `GroupedArrays`. Inputs beyond the last have scales of nothing."""
    codes = _codes(matrix)
    *rows, inputs = codes.shape
    padded = np.zeros((*rows, -(-inputs // (4 * stretch)) * 4 * stretch), np.uint8)
    padded[..., :inputs] = codes
    quarters = padded.reshape(*rows, -1, 4, stretch)
    low = quarters[..., 0, :] | (quarters[..., 1, :] << 4)
    high = quarters[..., 2, :] | (quarters[..., 3, :] << 4)
    words: NDArray[np.int16] = np.stack((low, high), axis=-1).reshape(*rows, -1).view(np.int16)
    return words


def _codes(matrix: Grouped) -> NDArray[np.uint8]:
    if matrix.numbers is Numbers.INT4:
        return (matrix.levels + np.int8(8)).view(np.uint8)
    sizes = np.array([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], np.uint8)  # twice the number -> its code
    codes: NDArray[np.uint8] = sizes[np.abs(matrix.levels)] | ((matrix.levels < 0).astype(np.uint8) << 3)
    return codes
