"""Two rows times two channels, eight inputs each, in one instruction of Arm: the bits of microkernel.py.

It takes eight bytes of a channel side by side, where packed tiles have four. A tile's weights are laid out
anew in the thread's buffer, once for all rows of a step: done for every four of them, it would take as many
instructions as are saved. Where the processor has no such instruction it is spelled out, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from python_backend.engine.native.microkernel import CHANNELS, GROUP, ROWS, Format, Tile, make_tile
from python_backend.engine.native.vectors import (
    HAS_SMMLA,
    I8,
    I32,
    I64,
    Dot,
    Vectors,
    at,
    chosen,
    load,
    pointer_to,
    counted,
    store,
    sum_of_neighbours,
)

_VECTORS = Vectors(4, Dot.SIGNED)
_EIGHT = 8  # inputs that are multiplied at a time
_QUAD_BYTES = 4 * CHANNELS
_QUAD = ir.VectorType(I8, _QUAD_BYTES)


def _both(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, lanes: list[int]) -> ir.Value:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def make_lay_out(kind: Format) -> Callable[..., None]:
    """lay_out(weights, groups, out): eight bytes of each channel in turn; 4-bit weights sixteenfold."""

    @intrinsic
    def lay_out(context, weights, groups, out):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            source, end = pointer_to(builder, values[0], I8), pointer_to(builder, values[2], I8)
            size = kind.bytes_per_group * _EIGHT // GROUP

            def two_quads(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                place = builder.gep(source, [builder.mul(index, ir.Constant(I64, size))])
                first = second = load(builder, place, _QUAD)
                if kind is Format.INT4:
                    first = builder.shl(second, ir.Constant(_QUAD, [4] * _QUAD_BYTES))
                    second = builder.and_(second, ir.Constant(_QUAD, [-16] * _QUAD_BYTES))
                else:
                    second = load(builder, at(builder, place, _QUAD_BYTES), _QUAD)
                wide = ir.VectorType(I32, CHANNELS)
                lanes = [lane for channel in range(CHANNELS) for lane in (channel, CHANNELS + channel)]
                eights = _both(builder, builder.bitcast(first, wide), builder.bitcast(second, wide), lanes)
                step = ir.Constant(I64, 2 * _QUAD_BYTES)
                store(builder, eights, builder.gep(end, [builder.mul(index, step)]))
                return sums

            counted(builder, builder.mul(values[1], ir.Constant(I64, GROUP // _EIGHT)), 1, [], two_quads)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return lay_out


class _Squares(Tile):
    """Of weights that are laid out for it."""

    def __init__(self, builder: ir.IRBuilder, kind: Format, rows: int, vectors: Vectors) -> None:
        super().__init__(builder, kind, rows, vectors)
        self._group_bytes = GROUP * CHANNELS

    def _group_of_bytes(self, weights: ir.Value, activations: list[ir.Value]) -> list[list[ir.Value]]:
        builder, kind = self._builder, self._vectors.bytes
        nothing = ir.Constant(self._vectors.counts, [0] * 4)
        squares = [[nothing] * (CHANNELS // 2) for _ in range(self._rows // 2)]
        for first in range(0, GROUP, _EIGHT):
            if first % kind.count == 0:
                loaded = [load(builder, at(builder, row, first), kind) for row in activations]
            lanes = list(range(first % kind.count, first % kind.count + _EIGHT))
            lanes += [kind.count + lane for lane in lanes]
            pairs = [_both(builder, *loaded[row : row + 2], lanes) for row in range(0, self._rows, 2)]
            for column in range(CHANNELS // 2):
                place = first * CHANNELS + column * kind.count
                channels = load(builder, at(builder, weights, place), kind)
                for square, rows in zip(squares, pairs, strict=True):
                    square[column] = multiply_squares(builder, square[column], rows, channels)
        return [
            [_both(builder, *square[2 * part : 2 * part + 2], lanes) for part in range(self.parts)]
            for square in squares
            for lanes in ([0, 1, 4, 5], [2, 3, 6, 7])
        ]


def multiply_squares(
    builder: ir.IRBuilder, total: ir.Value, rows: ir.Value, channels: ir.Value
) -> ir.Value:
    """Adds the products of both rows with both channels: of one row, then of the other."""
    if HAS_SMMLA:
        kind = ir.FunctionType(total.type, (total.type, rows.type, channels.type))
        name = "llvm.aarch64.neon.smmla.v4i32.v16i8"
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, name), (total, rows, channels)
        )
    first, second = list(range(_EIGHT)), list(range(_EIGHT, 2 * _EIGHT))
    wide = ir.VectorType(I32, 4 * _EIGHT)
    left = builder.sext(chosen(builder, rows, first + first + second + second), wide)
    products = builder.mul(left, builder.sext(chosen(builder, channels, first + second + first + second), wide))
    while products.type.count > total.type.count:
        products = sum_of_neighbours(builder, products)
    return builder.add(total, products)


def make_squares(kind: Format) -> Callable[..., None]:
    """What `make_tile` makes, for four rows and weights that are laid out for it."""
    return make_tile(kind, ROWS, _VECTORS, _Squares)
