"""Sixteen rows times sixteen channels by AMX: down to the last bit what microkernel.py computes.

A group's weights, as they lie in memory, fill one of its registers: eight quads of inputs, with four bytes of
each of eight channels side by side. Two tiles that follow each other are multiplied together, and scaled as
one vector. Four-bit weights are spread to bytes before. Elsewhere than on processors that have AMX nothing is
compiled, and nobody may ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from python_backend.engine.host.processor import is_amx_permitted
from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.vectors import (
    FEATURES,
    FLOAT,
    HALF,
    I8,
    I32,
    I64,
    at,
    broadcast,
    chosen,
    counted,
    load,
    multiply_add,
    pointer_to,
    store,
)

HAS_AMX = {"+amx-tile", "+amx-int8", "+avx512vl"} <= FEATURES
WIDE_ROWS = 16
WIDE_TILES = 2
_WIDTH = WIDE_TILES * CHANNELS
NEVER = np.int64(2**62)  # instead of the number of rows from which on it is used
GROUP_BYTES = GROUP * CHANNELS
_ROW_BYTES = 4 * CHANNELS
# Registers: sums of each tile for one group and for the next, rows of both groups, weights of each tile.
_SUMS, _ROWS, _WEIGHTS = range(4), range(4, 6), range(6, 8)
_SHAPES = {_SUMS: (WIDE_ROWS, _ROW_BYTES), _ROWS: (WIDE_ROWS, GROUP), _WEIGHTS: (GROUP // 4, _ROW_BYTES)}
_HALFS = ir.VectorType(HALF, CHANNELS)
_FLOATS, _COUNTS = ir.VectorType(FLOAT, _WIDTH), ir.VectorType(I32, _WIDTH)


def is_permitted() -> bool:
    """Whether the processor, the compiler and Linux all have it; whoever multiplies must have asked."""
    return HAS_AMX and is_amx_permitted()


def _call(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), arguments)


def _shapes() -> bytearray:
    """As the instruction that sets them reads them: bytes of a row from 16 on, rows from 48 on."""
    told = bytearray(64)
    told[0] = 1
    for registers, (rows, row_bytes) in _SHAPES.items():
        for register in registers:
            told[16 + 2 * register], told[48 + register] = row_bytes, rows
    return told


@intrinsic
def begin_tiles(context):
    """This thread's registers have their shapes from now on."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        if HAS_AMX:
            shapes = ir.Constant(ir.ArrayType(I8, 64), _shapes())
            place = cgutils.global_constant(builder, "tile_shapes", shapes)
            _call(builder, "ldtilecfg", builder.bitcast(place, I8.as_pointer()))
        return target.get_dummy_value()

    return types.void(), generate


@intrinsic
def end_tiles(context):
    """Nothing of them is left to be kept when other threads have the core."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        if HAS_AMX:
            _call(builder, "tilerelease")
        return target.get_dummy_value()

    return types.void(), generate


@intrinsic
def spread(context, nibbles, groups, out):
    """Groups of 4-bit weights as bytes, sixteenfold, as the microkernel has them in registers."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        source, end = pointer_to(builder, values[0], I8), pointer_to(builder, values[2], I8)
        kind = ir.VectorType(I8, _ROW_BYTES)

        def one_pair_of_quads(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            step = ir.Constant(I64, _ROW_BYTES)
            both = load(builder, builder.gep(source, [builder.mul(index, step)]), kind)
            place = builder.gep(end, [builder.mul(index, ir.Constant(I64, 2 * _ROW_BYTES))])
            store(builder, builder.shl(both, ir.Constant(kind, [4] * kind.count)), place)
            upper = builder.and_(both, ir.Constant(kind, [-16] * kind.count))
            store(builder, upper, builder.gep(place, [step]))
            return sums

        counted(builder, builder.mul(values[1], ir.Constant(I64, GROUP // 8)), 1, [], one_pair_of_quads)
        return target.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


class _WideTile:
    """Emits the loop over groups. While one is scaled and added, the next is multiplied already."""

    def __init__(self, builder: ir.IRBuilder, kind: Format, values: tuple[ir.Value, ...]) -> None:
        self._builder = builder
        self._kind = kind
        weights, scales, activations, self._stride, sizes, totals, groups_stride, self._groups = values[:8]
        scale_bytes = 2 * kind.scales_per_group
        self._weights = [pointer_to(builder, place, I8) for place in self._tiles(weights, GROUP_BYTES)]
        self._scales = [pointer_to(builder, place, HALF) for place in self._tiles(scales, scale_bytes)]
        self._activations = pointer_to(builder, activations, I8)
        self._sizes, self._totals = self.rows(sizes, groups_stride), self.rows(totals, groups_stride)
        counts = cgutils.alloca_once(builder, ir.ArrayType(I8, 2 * WIDE_ROWS * WIDE_TILES * _ROW_BYTES))
        counts.align = 64
        whole = builder.bitcast(counts, I8.as_pointer())
        self._counts = [at(builder, whole, half * WIDE_ROWS * WIDE_TILES * _ROW_BYTES) for half in range(2)]

    def _tiles(self, address: ir.Value, group_bytes: int) -> list[ir.Value]:
        builder = self._builder
        whole = builder.mul(self._groups, ir.Constant(I64, group_bytes))
        return [
            builder.add(address, builder.mul(whole, ir.Constant(I64, tile))) for tile in range(WIDE_TILES)
        ]

    def rows(self, address: ir.Value, step: ir.Value) -> list[ir.Value]:
        builder = self._builder
        steps = [builder.mul(step, ir.Constant(I64, row)) for row in range(WIDE_ROWS)]
        return [pointer_to(builder, builder.add(address, offset), FLOAT) for offset in steps]

    def sums(self, begun: list[ir.Value]) -> list[ir.Value]:
        """Two groups in each turn, because an instruction has the numbers of its registers in it."""
        builder, groups = self._builder, self._groups
        self._multiply(ir.Constant(I64, 0), 0)
        before = builder.block
        check, first, second, after = (
            builder.append_basic_block(name) for name in ("check", "first", "second", "after")
        )
        builder.branch(check)
        builder.position_at_end(check)
        index = builder.phi(I64)
        carried = [builder.phi(_FLOATS) for _ in begun]
        builder.cbranch(builder.icmp_signed("<", index, groups), first, after)
        builder.position_at_end(first)
        following, then = (builder.add(index, ir.Constant(I64, step)) for step in (1, 2))
        self._multiply(self._at_most_last(following), 1)
        halfway = self._scaled(index, 0, carried)
        builder.cbranch(builder.icmp_signed("<", following, groups), second, after)
        builder.position_at_end(second)
        self._multiply(self._at_most_last(then), 0)
        summed = self._scaled(following, 1, halfway)
        builder.branch(check)
        index.add_incoming(ir.Constant(I64, 0), before)
        index.add_incoming(then, second)
        builder.position_at_end(after)
        ends = [builder.phi(_FLOATS) for _ in begun]
        for row, end in enumerate(ends):
            carried[row].add_incoming(begun[row], before)
            carried[row].add_incoming(summed[row], second)
            end.add_incoming(carried[row], check)
            end.add_incoming(halfway[row], first)
        return ends

    def _at_most_last(self, index: ir.Value) -> ir.Value:
        builder = self._builder
        last = builder.sub(self._groups, ir.Constant(I64, 1))
        return builder.select(builder.icmp_signed("<", index, last), index, last)

    def _multiply(self, index: ir.Value, half: int) -> None:
        """Sums of one group's products, in integers, to where `_scaled` finds them."""
        builder = self._builder
        rows = builder.gep(self._activations, [builder.mul(index, ir.Constant(I64, GROUP))])
        group = builder.mul(index, ir.Constant(I64, GROUP_BYTES))
        taken = ir.Constant(I8, _ROWS[half])
        _call(builder, "tileloadd64", taken, rows, self._stride)
        for tile in range(WIDE_TILES):
            sums, by = ir.Constant(I8, _SUMS[2 * half + tile]), ir.Constant(I8, _WEIGHTS[tile])
            weights = builder.gep(self._weights[tile], [group])
            place = at(builder, self._counts[half], tile * _ROW_BYTES)
            _call(builder, "tilezero", sums)
            _call(builder, "tileloadd64", by, weights, ir.Constant(I64, _ROW_BYTES))
            _call(builder, "tdpbssd", sums, taken, by)
            _call(builder, "tilestored64", sums, place, ir.Constant(I64, WIDE_TILES * _ROW_BYTES))

    def _scaled(self, index: ir.Value, half: int, sums: list[ir.Value]) -> list[ir.Value]:
        builder, per_group = self._builder, self._kind.scales_per_group
        group = builder.mul(index, ir.Constant(I64, per_group))
        scales = [builder.gep(tile, [group]) for tile in self._scales]
        loaded = []
        for first in range(0, per_group, CHANNELS):
            halfs = [load(builder, at(builder, tile, first), _HALFS) for tile in scales]
            both = builder.shuffle_vector(*halfs, ir.Constant(_COUNTS, list(range(_WIDTH))))
            loaded.append(builder.fpext(both, _FLOATS))
        added = []
        for row in range(WIDE_ROWS):
            worth = builder.load(builder.gep(self._sizes[row], [index]))
            is_int4 = self._kind is Format.INT4
            step = builder.fmul(worth, ir.Constant(FLOAT, 1 / 16)) if is_int4 else worth
            scale = builder.fmul(loaded[0], broadcast(builder, step, _WIDTH))
            counts = load(builder, at(builder, self._counts[half], row * WIDE_TILES * _ROW_BYTES), _COUNTS)
            total = multiply_add(builder, builder.sitofp(counts, _FLOATS), scale, sums[row])
            if is_int4:
                levels = builder.load(builder.gep(self._totals[row], [index]))
                together = broadcast(builder, builder.fmul(worth, levels), _WIDTH)
                total = multiply_add(builder, loaded[1], together, total)
            added.append(total)
        return added


def make_wide_tile(kind: Format) -> Callable[..., None]:
    """What `make_tile` makes, for sixteen rows and two tiles, by a thread that has begun with tiles.

    The second tile's sums end `gap` bytes behind those of the first.
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
        gap,
    ):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            if HAS_AMX:
                begin, begin_stride, out, out_stride, gap = values[8:]
                tile = _WideTile(builder, kind, values)
                begun = [load(builder, place, _FLOATS) for place in tile.rows(begin, begin_stride)]
                sums = tile.sums(begun)
                for half, address in enumerate((out, builder.add(out, gap))):
                    lanes = list(range(half * CHANNELS, (half + 1) * CHANNELS))
                    for vector, place in zip(sums, tile.rows(address, out_stride), strict=True):
                        store(builder, chosen(builder, vector, lanes), place)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 13), generate

    return tile
