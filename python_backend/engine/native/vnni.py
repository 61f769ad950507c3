"""Eight rows times sixteen channels by AVX-512's VNNI: down to the last bit what microkernel.py computes.

With four rows and eight channels each product waits for the one before it, and as many instructions move
bytes as multiply them. So two tiles are laid out side by side in the thread's buffer, once for many rows, as
bytes without a sign, with scales as floats. Where the processor has no such instruction it is spelled out,
for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.vectors import (
    BIAS,
    FLOAT,
    HALF,
    I8,
    I32,
    I64,
    Dot,
    at,
    broadcast,
    chosen,
    counted,
    dot,
    load,
    multiply_add,
    pointer_to,
    store,
)

BLOCK_ROWS = 8
_WIDTH = 2 * CHANNELS
_QUADS = GROUP // 4
_QUAD_BYTES = 4 * CHANNELS
_QUAD, _BYTES = ir.VectorType(I8, _QUAD_BYTES), ir.VectorType(I8, 2 * _QUAD_BYTES)
_COUNTS, _FLOATS = ir.VectorType(I32, _WIDTH), ir.VectorType(FLOAT, _WIDTH)
_HALFS = ir.VectorType(HALF, CHANNELS)


def laid_out_bytes(kind: Format) -> int:
    """Of a tile's group: weights as bytes, then scales, and for 4 bits offsets."""
    return GROUP * CHANNELS + 4 * kind.scales_per_group


def _beside(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    lanes = list(range(2 * left.type.count))
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def make_side_by_side(kind: Format) -> Callable[..., None]:
    """lay_out(weights, scales, groups, out), of addresses; `groups` are those of both tiles."""

    @intrinsic
    def lay_out(context, weights, scales, groups, out):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            weights, scales, groups, out = values
            of_each = builder.lshr(groups, ir.Constant(I64, 1))

            def place(address: ir.Value, index: ir.Value, size: int) -> ir.Value:
                return pointer_to(
                    builder, builder.add(address, builder.mul(index, ir.Constant(I64, size))), I8
                )

            def one_group(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                end, both = place(out, index, 2 * laid_out_bytes(kind)), (index, builder.add(index, of_each))
                _lay_out_weights(
                    builder, kind, [place(weights, each, kind.bytes_per_group) for each in both], end
                )
                halfs = [place(scales, each, 2 * kind.scales_per_group) for each in both]
                for first in range(0, kind.scales_per_group, CHANNELS):
                    loaded = [load(builder, at(builder, tile, 2 * first), _HALFS) for tile in halfs]
                    floats = builder.fpext(_beside(builder, *loaded), _FLOATS)
                    store(builder, floats, at(builder, end, 2 * (GROUP * CHANNELS + 4 * first)))
                return sums

            counted(builder, of_each, 1, [], one_group)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return lay_out


def _lay_out_weights(builder: ir.IRBuilder, kind: Format, tiles: list[ir.Value], end: ir.Value) -> None:
    """Quad by quad; a byte of 4-bit weights holds two, which become bytes, sixteenfold."""
    for quad in range(_QUADS):
        place = (quad // 2 if kind is Format.INT4 else quad) * _QUAD_BYTES
        both = _beside(builder, *(load(builder, at(builder, tile, place), _QUAD) for tile in tiles))
        if kind is Format.INT4 and quad % 2:
            both = builder.and_(both, ir.Constant(_BYTES, [-16] * _BYTES.count))
        elif kind is Format.INT4:
            both = builder.shl(both, ir.Constant(_BYTES, [4] * _BYTES.count))
        biased = builder.xor(both, ir.Constant(_BYTES, [-BIAS] * _BYTES.count))
        store(builder, biased, at(builder, end, quad * _BYTES.count))


class _Block:
    """Emits one group of both tiles, for all rows."""

    def __init__(self, builder: ir.IRBuilder, kind: Format, values: tuple[ir.Value, ...]) -> None:
        weights, activations, stride, sizes, totals, groups_stride = values
        self._builder = builder
        self._kind = kind
        self._weights = pointer_to(builder, weights, I8)
        self._activations = self.rows(activations, stride, I8)
        self._sizes = self.rows(sizes, groups_stride, FLOAT)
        self._totals = self.rows(totals, groups_stride, FLOAT)

    def rows(self, address: ir.Value, step: ir.Value, kind: ir.Type) -> list[ir.Value]:
        builder = self._builder
        steps = [builder.mul(step, ir.Constant(I64, row)) for row in range(BLOCK_ROWS)]
        return [pointer_to(builder, builder.add(address, offset), kind) for offset in steps]

    def group(self, index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        builder = self._builder
        start = builder.mul(index, ir.Constant(I64, 2 * laid_out_bytes(self._kind)))
        weights = builder.gep(self._weights, [start])
        sizes = at(builder, weights, 2 * GROUP * CHANNELS)
        scales = load(builder, sizes, _FLOATS)
        is_int4 = self._kind is Format.INT4
        offsets = load(builder, at(builder, sizes, 4 * _WIDTH), _FLOATS) if is_int4 else None
        added = []
        for row, counts in enumerate(self._counts(weights, index)):
            worth = builder.load(builder.gep(self._sizes[row], [index]))
            levels = builder.load(builder.gep(self._totals[row], [index]))
            step = builder.fmul(worth, ir.Constant(FLOAT, 1 / 16)) if is_int4 else worth
            scale = builder.fmul(scales, broadcast(builder, step, _WIDTH))
            # All of them are whole numbers below 2²⁴: nothing is rounded.
            excess = broadcast(builder, builder.fmul(levels, ir.Constant(FLOAT, BIAS)), _WIDTH)
            floats = builder.fsub(builder.sitofp(counts, _FLOATS), excess)
            total = multiply_add(builder, floats, scale, sums[row])
            if offsets is not None:
                together = broadcast(builder, builder.fmul(worth, levels), _WIDTH)
                total = multiply_add(builder, offsets, together, total)
            added.append(total)
        return added

    def _counts(self, weights: ir.Value, index: ir.Value) -> list[ir.Value]:
        """Sums of products, in integers."""
        builder = self._builder
        start = builder.mul(index, ir.Constant(I64, GROUP))
        rows = [builder.gep(row, [start]) for row in self._activations]
        counts = [ir.Constant(_COUNTS, [0] * _WIDTH)] * BLOCK_ROWS
        for quad in range(_QUADS):
            column = load(builder, at(builder, weights, quad * _BYTES.count), _BYTES)
            for number, row in enumerate(rows):
                word = load(builder, at(builder, row, 4 * quad), I32)
                spread = builder.bitcast(broadcast(builder, word, _WIDTH), _BYTES)
                counts[number] = dot(builder, Dot.BIASED, counts[number], column, spread)
        return counts


def make_block(kind: Format) -> Callable[..., None]:
    """tile(weights, activations, stride, sizes, totals, groups_stride, groups, begin, ..., out, ..., gap).

    As `make_tile` has them, of eight rows and two tiles that are laid out; the second tile's sums end `gap`
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
            block = _Block(builder, kind, values[:6])
            begun = [load(builder, place, _FLOATS) for place in block.rows(begin, begin_stride, FLOAT)]
            sums = counted(builder, groups, 1, begun, block.group)
            for half, address in enumerate((out, builder.add(out, gap))):
                lanes = list(range(half * CHANNELS, (half + 1) * CHANNELS))
                for vector, place in zip(sums, block.rows(address, out_stride, FLOAT), strict=True):
                    store(builder, chosen(builder, vector, lanes), place)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return tile
