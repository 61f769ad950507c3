"""A matrix as it is stored quantised: levels, and what they are worth in each group of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
# A function of rows: what it does to one array of (rows, anything) it does to all of a matrix.
RowsFunction = Callable[[NDArray[Any]], NDArray[Any]]


class Numbers(str, Enum):
    """What a level may be."""

    INT4 = "int4"
    INT8 = "int8"
    E4M3 = "e4m3"
    E2M1 = "e2m1"


def _e4m3_values() -> Weights:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size = np.where((codes & 127) == 127, np.nan, size)
    return np.where(codes > 127, -size, size).astype(np.float32)


E4M3_VALUES = _e4m3_values()


@dataclass(frozen=True, slots=True)
class Grouped:
    """Entry (…, r, c) is levels[…, r, c] · scales[…, r, g] + offsets[…, r, g], where g is c's group.

    Groups are equally wide. Levels are integers (`int8`), but for E4M3 the codes (`uint8`); those of E2M1 are
    twice the number that is stored, so that they are integers, too.
    """

    numbers: Numbers
    levels: NDArray[Any]
    scales: Weights
    offsets: Weights | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.levels.shape

    @property
    def group(self) -> int:
        return int(self.levels.shape[-1] // self.scales.shape[-1])

    def dequantized(self) -> Weights:
        values = E4M3_VALUES[self.levels] if self.numbers is Numbers.E4M3 else self.levels.astype(np.float32)
        by_group = values.reshape(*self.scales.shape, self.group)
        by_group *= self.scales[..., None]
        if self.offsets is not None:
            by_group += self.offsets[..., None]
        dense: Weights = by_group.reshape(self.shape)
        return dense

    def by_rows(self, function: RowsFunction) -> Grouped:
        return replace(
            self,
            levels=function(self.levels),
            scales=function(self.scales),
            offsets=None if self.offsets is None else function(self.offsets),
        )

    def times(self, factor: float) -> Grouped:
        number = np.float32(factor)
        return replace(
            self, scales=self.scales * number, offsets=None if self.offsets is None else self.offsets * number
        )

    def in_groups_of(self, group: int) -> Grouped:
        """In narrower groups, or the same."""
        times = self.group // group
        return replace(
            self,
            scales=self.scales.repeat(times, -1),
            offsets=None if self.offsets is None else self.offsets.repeat(times, -1),
        )


Matrix = Weights | Grouped


def dense(matrix: Matrix) -> Weights:
    return matrix.dequantized() if isinstance(matrix, Grouped) else matrix


def of_rows(matrix: Matrix, function: RowsFunction) -> Matrix:
    return matrix.by_rows(function) if isinstance(matrix, Grouped) else function(matrix)


def times(matrix: Matrix, factor: float) -> Matrix:
    if factor == 1.0:
        return matrix
    return matrix.times(factor) if isinstance(matrix, Grouped) else matrix * np.float32(factor)


def concatenated(matrices: Sequence[Matrix]) -> Matrix:
    """One below the other; quantised still where all are in the same way."""
    return _together(matrices, lambda parts: np.concatenate(parts, axis=-2))


def stacked(matrices: Sequence[Matrix]) -> Matrix:
    """One behind the other, as the first of three dimensions."""
    return _together(matrices, np.stack)


def _together(matrices: Sequence[Matrix], join: Callable[[list[NDArray[Any]]], NDArray[Any]]) -> Matrix:
    grouped = [each for each in matrices if isinstance(each, Grouped)]
    if len(grouped) < len(matrices) or len({each.numbers for each in grouped}) > 1:
        return join([dense(each) for each in matrices])
    narrowest = min(each.group for each in grouped)
    if any(each.group % narrowest for each in grouped):
        return join([dense(each) for each in matrices])
    alike = [each.in_groups_of(narrowest) for each in grouped]
    offsets = None
    if any(each.offsets is not None for each in alike):
        offsets = join(
            [np.zeros_like(each.scales) if each.offsets is None else each.offsets for each in alike]
        )
    return Grouped(
        alike[0].numbers,
        join([each.levels for each in alike]),
        join([each.scales for each in alike]),
        offsets,
    )
