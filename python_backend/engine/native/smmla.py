"""Two rows times sixteen channels by Arm's `smmla`: down to the last bit what microkernel.py computes.

The instruction multiplies two rows with two channels, eight inputs each. It wants eight bytes of a channel
side by side, where packed tiles have four, and sums come out two by two. So two tiles are laid out anew in
the thread's buffer, once for many rows: done for every four rows, as `sdot` takes them, it would cost as many
instructions as it saves. Sums stay two by two from group to group; scales are laid out as floats for that.
Where the processor has no such instruction it is spelled out, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.vectors import (
    FLOAT,
    HALF,
    HAS_SMMLA,
    I8,
    I32,
    I64,
    at,
    chosen,
    counted,
    load,
    multiply_add,
    pointer_to,
    store,
    sum_of_neighbours,
)

SQUARE_ROWS = 2
_TILES = 2
_EIGHT = 8  # inputs of one instruction
_SQUARES = CHANNELS // 2  # of a tile
_QUAD_BYTES = 4 * CHANNELS
_QUAD, _QUAD_WORDS = ir.VectorType(I8, _QUAD_BYTES), ir.VectorType(I32, CHANNELS)
_BYTES, _COUNTS, _FLOATS = ir.VectorType(I8, 16), ir.VectorType(I32, 4), ir.VectorType(FLOAT, 4)


def laid_out_bytes(kind: Format) -> int:
    """Of a group: weights as bytes, then scales, and for 4 bits offsets, each of them twice."""
    return GROUP * CHANNELS + 8 * kind.scales_per_group


def _mixed(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, lanes: list[int]) -> ir.Value:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def _turned(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Two squares of two rows with four channels of each, or the rows of two squares."""
    return _mixed(builder, left, right, [0, 1, 4, 5]), _mixed(builder, left, right, [2, 3, 6, 7])


def make_lay_out(kind: Format) -> Callable[..., None]:
    """lay_out(weights, scales, groups, out), of addresses. Four-bit weights become bytes, sixteenfold."""

    @intrinsic
    def lay_out(context, weights, scales, groups, out):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            weights, scales, groups, out = values

            def place(address: ir.Value, index: ir.Value, size: int) -> ir.Value:
                return pointer_to(
                    builder, builder.add(address, builder.mul(index, ir.Constant(I64, size))), I8
                )

            def one_group(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                end = place(out, index, laid_out_bytes(kind))
                _lay_out_weights(builder, kind, place(weights, index, kind.bytes_per_group), end)
                halfs = place(scales, index, 2 * kind.scales_per_group)
                _lay_out_scales(builder, kind.scales_per_group, halfs, at(builder, end, GROUP * CHANNELS))
                return sums

            counted(builder, groups, 1, [], one_group)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return lay_out


def _lay_out_weights(builder: ir.IRBuilder, kind: Format, source: ir.Value, end: ir.Value) -> None:
    """Eight bytes of each channel in turn, from two quads; a byte of 4-bit weights holds both."""
    lanes = [lane for channel in range(CHANNELS) for lane in (channel, CHANNELS + channel)]
    for first in range(0, GROUP, _EIGHT):
        if kind is Format.INT4:
            both = load(builder, at(builder, source, first // _EIGHT * _QUAD_BYTES), _QUAD)
            quads = [
                builder.shl(both, ir.Constant(_QUAD, [4] * _QUAD_BYTES)),
                builder.and_(both, ir.Constant(_QUAD, [-16] * _QUAD_BYTES)),
            ]
        else:
            places = first * CHANNELS, first * CHANNELS + _QUAD_BYTES
            quads = [load(builder, at(builder, source, place), _QUAD) for place in places]
        left, right = (builder.bitcast(quad, _QUAD_WORDS) for quad in quads)
        store(builder, _mixed(builder, left, right, lanes), at(builder, end, first * CHANNELS))


def _lay_out_scales(builder: ir.IRBuilder, count: int, source: ir.Value, end: ir.Value) -> None:
    """Those of two channels, for one row and for the other."""
    for first in range(0, count, 4):
        halfs = load(builder, at(builder, source, 2 * first), ir.VectorType(HALF, 4))
        twice = chosen(builder, builder.fpext(halfs, _FLOATS), [0, 1, 0, 1, 2, 3, 2, 3])
        store(builder, twice, at(builder, end, 8 * first))


class _Squares:
    """Emits one group of both tiles, that of the left and that of the right eight channels."""

    def __init__(self, builder: ir.IRBuilder, kind: Format, values: tuple[ir.Value, ...]) -> None:
        weights, activations, stride, sizes, totals, groups_stride, groups = values
        self._builder = builder
        self._kind = kind
        tile_bytes = builder.mul(groups, ir.Constant(I64, laid_out_bytes(kind)))
        self._weights = [
            pointer_to(builder, each, I8) for each in (weights, builder.add(weights, tile_bytes))
        ]
        self._activations = self.both_rows(activations, stride, I8)
        self._sizes = self.both_rows(sizes, groups_stride, FLOAT)
        self._totals = self.both_rows(totals, groups_stride, FLOAT)

    def both_rows(self, address: ir.Value, stride: ir.Value, kind: ir.Type) -> list[ir.Value]:
        return [pointer_to(self._builder, row, kind) for row in (address, self._builder.add(address, stride))]

    def group(self, index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        builder = self._builder
        start = builder.mul(index, ir.Constant(I64, laid_out_bytes(self._kind)))
        tiles = [builder.gep(tile, [start]) for tile in self._weights]
        worth = self._of_rows(self._sizes, index)
        step, together = worth, None
        if self._kind is Format.INT4:
            step = builder.fmul(worth, ir.Constant(_FLOATS, [1 / 16] * 4))
            together = builder.fmul(worth, self._of_rows(self._totals, index))
        added = []
        for number, count in enumerate(self._counts(tiles, index)):
            tile, square = tiles[number // _SQUARES], number % _SQUARES
            place = at(builder, tile, GROUP * CHANNELS + 16 * square)
            scale = builder.fmul(load(builder, place, _FLOATS), step)
            total = multiply_add(builder, builder.sitofp(count, _FLOATS), scale, sums[number])
            if together is not None:
                offset = load(builder, at(builder, place, 16 * _SQUARES), _FLOATS)
                total = multiply_add(builder, offset, together, total)
            added.append(total)
        return added

    def _of_rows(self, rows: list[ir.Value], index: ir.Value) -> ir.Value:
        builder, vector = self._builder, ir.Constant(_FLOATS, ir.Undefined)
        first, second = (builder.load(builder.gep(row, [index])) for row in rows)
        for lane, value in enumerate((first, first, second, second)):
            vector = builder.insert_element(vector, value, ir.Constant(I32, lane))
        return vector

    def _counts(self, tiles: list[ir.Value], index: ir.Value) -> list[ir.Value]:
        """Sums of products, in integers."""
        builder = self._builder
        start = builder.mul(index, ir.Constant(I64, GROUP))
        rows = [builder.gep(row, [start]) for row in self._activations]
        counts = [ir.Constant(_COUNTS, [0] * 4)] * (_TILES * _SQUARES)
        for first in range(0, GROUP, 2 * _EIGHT):
            left, right = (load(builder, at(builder, row, first), _BYTES) for row in rows)
            for half in range(2):
                lanes = list(range(half * _EIGHT, (half + 1) * _EIGHT))
                pair = _mixed(builder, left, right, lanes + [16 + lane for lane in lanes])
                for number, count in enumerate(counts):
                    tile, square = tiles[number // _SQUARES], number % _SQUARES
                    place = (first + half * _EIGHT) * CHANNELS + 16 * square
                    channels = load(builder, at(builder, tile, place), _BYTES)
                    counts[number] = _multiply(builder, count, pair, channels)
        return counts


def _multiply(builder: ir.IRBuilder, total: ir.Value, rows: ir.Value, channels: ir.Value) -> ir.Value:
    """Adds the products of the first row with both channels, then those of the second."""
    if HAS_SMMLA:
        kind = ir.FunctionType(total.type, (total.type, rows.type, channels.type))
        name = "llvm.aarch64.neon.smmla.v4i32.v16i8"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, (total, rows, channels))
    first, second = list(range(_EIGHT)), list(range(_EIGHT, 2 * _EIGHT))
    wide = ir.VectorType(I32, 4 * _EIGHT)
    left = builder.sext(chosen(builder, rows, first + first + second + second), wide)
    right = builder.sext(chosen(builder, channels, first + second + first + second), wide)
    products = builder.mul(left, right)
    while products.type.count > total.type.count:
        products = sum_of_neighbours(builder, products)
    return builder.add(total, products)


def make_squares(kind: Format) -> Callable[..., None]:
    """tile(weights, activations, stride, sizes, totals, groups_stride, groups, begin, ..., out, ..., gap).

    As `make_tile` has them, of two rows and two tiles that are laid out; the second tile's sums end `gap`
    bytes behind those of the first.
    """

    @intrinsic
    def tile(
        context,
        weights,
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
        gap,
    ):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            groups, begin, begin_stride, out, out_stride, gap = values[6:]
            tile = _Squares(builder, kind, values[:7])

            def places(address: ir.Value, step: ir.Value, gap: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
                """Of four channels each."""
                tiles = [tile.both_rows(each, step, FLOAT) for each in (address, builder.add(address, gap))]
                return [
                    (at(builder, first, four), at(builder, second, four))
                    for first, second in tiles
                    for four in range(0, CHANNELS, 4)
                ]

            begun: list[ir.Value] = []
            for both in places(begin, begin_stride, ir.Constant(I64, 4 * CHANNELS)):
                begun += _turned(builder, *(load(builder, place, _FLOATS) for place in both))
            sums = counted(builder, groups, 1, begun, tile.group)
            for number, both in enumerate(places(out, out_stride, gap)):
                rows = _turned(builder, sums[2 * number], sums[2 * number + 1])
                for row, place in zip(rows, both, strict=True):
                    store(builder, row, place)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return tile
