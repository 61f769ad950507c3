"""The innermost loop of products, written for the compiler: rows times eight output channels.

Everything else of a step is plain Python for numba. Here and in combining.py numba is told instruction by
instruction, because what makes it fast is the dot product of four bytes at once, of which Python knows
nothing. One kernel is generated for each weight format and number of rows; weight_layouts.py writes the
layouts it reads.

A row's result depends on that row alone, down to the last bit: sums over integers are exact, and the groups
of a row are added in one order whatever rows share the tile. So an answer never depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from python_backend.engine.native.vectors import (
    BIAS,
    FLOAT,
    HALF,
    I8,
    I32,
    I64,
    VECTORS,
    Dot,
    Vectors,
    at,
    broadcast,
    chosen,
    counted,
    dot,
    load,
    multiply_add,
    pointer_to,
    store,
    sum_of_neighbours,
)

# Inputs that share one scale; a format's layout in memory is a row of such groups.
GROUP = 32
# Output channels of a tile: one vector, or two of four.
CHANNELS = 8
# Rows of a tile; what is left of more is multiplied in halves.
ROWS = (1, 2, 4)
MOST_ROWS = ROWS[-1]
LARGEST_HALF = 65504.0


class Format(IntEnum):
    FP32 = 0
    INT8 = 1
    INT4 = 2

    @property
    def bytes_per_group(self) -> int:
        """Of one tile's eight channels."""
        return GROUP * CHANNELS * {Format.FP32: 8, Format.INT8: 2, Format.INT4: 1}[self] // 2

    @property
    def scales_per_group(self) -> int:
        """Halfs beside them: a scale for each channel, and for 4 bits an offset too."""
        return CHANNELS * {Format.FP32: 0, Format.INT8: 1, Format.INT4: 2}[self]


class _Tile:
    """Emits one tile's loop over groups; `weights` and the rest are pointers to the tile's beginning."""

    def __init__(self, builder: ir.IRBuilder, kind: Format, rows: int, vectors: Vectors) -> None:
        self._builder = builder
        self._kind = kind
        self._rows = rows
        self._vectors = vectors
        self.parts = CHANNELS // vectors.lanes

    def group(
        self, pointers: dict[str, Any], index: ir.Value, sums: list[list[ir.Value]]
    ) -> list[list[ir.Value]]:
        builder = self._builder
        weights = builder.gep(
            pointers["weights"], [builder.mul(index, ir.Constant(I64, self._kind.bytes_per_group))]
        )
        size = 4 if self._kind is Format.FP32 else 1
        step = builder.mul(index, ir.Constant(I64, GROUP * size))
        activations = [builder.gep(row, [step]) for row in pointers["activations"]]
        if self._kind is Format.FP32:
            return self._group_of_floats(weights, activations, sums)
        counts = self._group_of_bytes(weights, activations)
        return self._scaled(pointers, index, counts, sums)

    def _group_of_floats(
        self, weights: ir.Value, activations: list[ir.Value], sums: list[list[ir.Value]]
    ) -> list[list[ir.Value]]:
        builder, kind = self._builder, self._vectors.floats
        for position in range(GROUP):
            spread = [self._spread(row, position, FLOAT) for row in activations]
            for part in range(self.parts):
                place = 4 * (position * CHANNELS + part * self._vectors.lanes)
                column = load(builder, at(builder, weights, place), kind)
                for row in range(self._rows):
                    sums[row][part] = multiply_add(builder, column, spread[row], sums[row][part])
        return sums

    def _spread(self, row: ir.Value, place: int, kind: ir.Type) -> ir.Value:
        """Four bytes of a row, in every lane; on Arm products take them from a vector that has more."""
        builder, lanes = self._builder, self._vectors.lanes
        if self._vectors.dot is not Dot.SIGNED:
            return broadcast(builder, load(builder, at(builder, row, 4 * place), kind), lanes)
        first = place - place % 4
        return chosen(
            builder, load(builder, at(builder, row, 4 * first), ir.VectorType(kind, 4)), [place % 4] * lanes
        )

    def _group_of_bytes(self, weights: ir.Value, activations: list[ir.Value]) -> list[list[ir.Value]]:
        """Sums of products, in integers; 4-bit weights count sixteenfold, which `_scaled` takes back."""
        builder, vectors = self._builder, self._vectors
        nothing = ir.Constant(vectors.counts, [0] * vectors.counts.count)
        counts = [[nothing for _ in range(self.parts)] for _ in range(self._rows)]
        upper: dict[tuple[int, int], ir.Value] = {}
        for quad in range(GROUP // 4):
            spread = [builder.bitcast(self._spread(row, quad, I32), vectors.bytes) for row in activations]
            for part in range(self.parts):
                column = self._column(weights, quad, part, upper)
                if vectors.dot is Dot.BIASED:
                    column = builder.xor(column, ir.Constant(vectors.bytes, [-BIAS] * vectors.bytes.count))
                for row in range(self._rows):
                    counts[row][part] = dot(builder, vectors.dot, counts[row][part], column, spread[row])
        if vectors.dot is Dot.IN_PAIRS:
            return [[sum_of_neighbours(builder, count) for count in row] for row in counts]
        return counts

    def _column(
        self, weights: ir.Value, quad: int, part: int, upper: dict[tuple[int, int], ir.Value]
    ) -> ir.Value:
        """Four inputs of some channels. A byte of 4-bit weights holds two quads, the next one above."""
        builder, kind = self._builder, self._vectors.bytes
        size = kind.count
        if self._kind is Format.INT8:
            return load(builder, at(builder, weights, (self.parts * quad + part) * size), kind)
        if quad % 2:
            return upper[quad - 1, part]
        both = load(builder, at(builder, weights, (self.parts * quad // 2 + part) * size), kind)
        upper[quad, part] = builder.and_(both, ir.Constant(kind, [-16] * size))
        return builder.shl(both, ir.Constant(kind, [4] * size))

    def _scaled(
        self,
        pointers: dict[str, Any],
        index: ir.Value,
        counts: list[list[ir.Value]],
        sums: list[list[ir.Value]],
    ) -> list[list[ir.Value]]:
        builder, vectors = self._builder, self._vectors
        lanes = vectors.lanes
        scales = builder.gep(
            pointers["scales"], [builder.mul(index, ir.Constant(I64, self._kind.scales_per_group))]
        )
        loaded = [
            builder.fpext(load(builder, at(builder, scales, first), vectors.halfs), vectors.floats)
            for first in range(0, self._kind.scales_per_group, lanes)
        ]
        for row in range(self._rows):
            worth = builder.load(builder.gep(pointers["sizes"][row], [index]))
            total = builder.load(builder.gep(pointers["totals"][row], [index]))
            step = worth
            if self._kind is Format.INT4:
                step = builder.fmul(worth, ir.Constant(FLOAT, 1 / 16))
            size = broadcast(builder, step, lanes)
            # All of them are whole numbers below 2²⁴: nothing is rounded.
            excess = broadcast(builder, builder.fmul(total, ir.Constant(FLOAT, BIAS)), lanes)
            for part in range(self.parts):
                scale = builder.fmul(loaded[part], size)
                floats = builder.sitofp(counts[row][part], vectors.floats)
                if vectors.dot is Dot.BIASED:
                    floats = builder.fsub(floats, excess)
                sums[row][part] = multiply_add(builder, floats, scale, sums[row][part])
            if self._kind is Format.INT4:
                together = broadcast(builder, builder.fmul(worth, total), lanes)
                for part in range(self.parts):
                    offset = loaded[self.parts + part]
                    sums[row][part] = multiply_add(builder, offset, together, sums[row][part])
        return sums


def make_tile(kind: Format, rows: int, vectors: Vectors = VECTORS) -> Callable[..., None]:
    """tile(weights, scales, activations, stride, sizes, totals, groups_stride, groups, begin, ..., out, ...).

    All are integers. `weights` and `scales` are where the tile begins; `activations` the first row, of floats
    or of bytes, with `stride` bytes to the next; `sizes` and `totals` what one byte of each group is worth
    and what its bytes sum up to, `groups_stride` bytes from row to row. Sums start at the eight floats at
    `begin` and end at those at `out`, each with the bytes from row to row after it.
    """

    @intrinsic
    def tile(
        context,
        weights,
        scales,
        activations,
        stride,
        sizes,
        totals,
        groups_stride,
        groups,
        begin,
        begin_stride,
        out,
        out_stride,
    ):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            weights, scales, activations, stride, sizes, totals, groups_stride, groups = values[:8]
            begin, begin_stride, out, out_stride = values[8:]
            tile = _Tile(builder, kind, rows, vectors)

            def rows_of(address: ir.Value, step: ir.Value, element: ir.Type) -> list[ir.Value]:
                steps = [builder.mul(step, ir.Constant(I64, row)) for row in range(rows)]
                return [pointer_to(builder, builder.add(address, offset), element) for offset in steps]

            pointers = {
                "weights": pointer_to(builder, weights, I8),
                "scales": pointer_to(builder, scales, HALF),
                "activations": rows_of(activations, stride, I8),
                "sizes": rows_of(sizes, groups_stride, FLOAT),
                "totals": rows_of(totals, groups_stride, FLOAT),
            }

            def places(address: ir.Value, step: ir.Value) -> list[ir.Value]:
                return [
                    at(builder, row, first)
                    for row in rows_of(address, step, FLOAT)
                    for first in range(0, CHANNELS, vectors.lanes)
                ]

            def add_group(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                by_row = [sums[first : first + tile.parts] for first in range(0, len(sums), tile.parts)]
                return [vector for row in tile.group(pointers, index, by_row) for vector in row]

            begun = [load(builder, place, vectors.floats) for place in places(begin, begin_stride)]
            sums = counted(builder, groups, 1, begun, add_group)
            for vector, place in zip(sums, places(out, out_stride), strict=True):
                store(builder, vector, place)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return tile
