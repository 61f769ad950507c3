"""The innermost loops, written for the compiler: rows times eight output channels, and sums of attention.

Everything else of a step is plain Python for numba. Here numba is told instruction by instruction, because
what makes it fast is the dot product of four bytes at once, of which Python knows nothing. One kernel is
generated for each weight format and number of rows; weight_layouts.py writes the layouts it reads.

A row's result depends on that row alone, down to the last bit: sums over integers are exact, and the groups
of a row are added in one order whatever rows share the tile. So an answer never depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Inputs that share one scale; a format's layout in memory is a row of such groups.
GROUP = 32
# Output channels of a tile: two vectors of four.
CHANNELS = 8
ROWS = 4
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


_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_BYTES = ir.VectorType(_I8, 16)
_INTS = ir.VectorType(_I32, 4)
_FLOATS = ir.VectorType(_FLOAT, 4)
_HALFS = ir.VectorType(_HALF, 4)


def _has_dot_product() -> bool:
    try:
        return "asimddp" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


_DOT_PRODUCT = _has_dot_product()


def _at(builder: ir.IRBuilder, pointer: ir.Value, offset: int) -> ir.Value:
    return builder.gep(pointer, [ir.Constant(_I64, offset)])


def _load(builder: ir.IRBuilder, pointer: ir.Value, kind: ir.Type) -> ir.Value:
    loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _splat(builder: ir.IRBuilder, vector: ir.Value, lane: int) -> ir.Value:
    nothing = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, nothing, ir.Constant(_INTS, [lane] * 4))


def _broadcast(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    return _splat(builder, builder.insert_element(nothing, scalar, ir.Constant(_I32, 0)), 0)


def _multiply_add(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), "llvm.fma.v4f32"
    )
    return builder.call(function, (left, right, total))


# Without that instruction pairs of products are summed first, in twice as many sums.
_COUNTS = _INTS if _DOT_PRODUCT else ir.VectorType(_I32, 8)


def _dot(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """Adds to each of four sums the product of four signed bytes with four others."""
    if _DOT_PRODUCT:
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_INTS, (_INTS, _BYTES, _BYTES)),
            "llvm.aarch64.neon.sdot.v4i32.v16i8",
        )
        return builder.call(function, (total, weights, activations))
    wide = ir.VectorType(_I32, 16)
    products = builder.mul(builder.sext(weights, wide), builder.sext(activations, wide))
    return builder.add(total, _sum_of_neighbours(builder, products))


def _sum_of_neighbours(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Half as many lanes; from products of bytes, x86 does it in one instruction."""
    half = vector.type.count // 2
    nothing = ir.Constant(vector.type, ir.Undefined)
    lanes = ir.VectorType(_I32, half)
    even = builder.shuffle_vector(vector, nothing, ir.Constant(lanes, [2 * lane for lane in range(half)]))
    odd = builder.shuffle_vector(vector, nothing, ir.Constant(lanes, [2 * lane + 1 for lane in range(half)]))
    return builder.add(even, odd)


def _four_sums(builder: ir.IRBuilder, counts: ir.Value) -> ir.Value:
    return counts if _DOT_PRODUCT else _sum_of_neighbours(builder, counts)


class _Tile:
    """Emits one tile's loop over groups; `weights` and the rest are pointers to the tile's beginning."""

    def __init__(self, builder: ir.IRBuilder, kind: Format, rows: int) -> None:
        self._builder = builder
        self._kind = kind
        self._rows = rows

    def group(
        self, pointers: dict[str, Any], index: ir.Value, sums: list[list[ir.Value]]
    ) -> list[list[ir.Value]]:
        builder = self._builder
        weights = builder.gep(
            pointers["weights"], [builder.mul(index, ir.Constant(_I64, self._kind.bytes_per_group))]
        )
        size = 4 if self._kind is Format.FP32 else 1
        step = builder.mul(index, ir.Constant(_I64, GROUP * size))
        activations = [builder.gep(row, [step]) for row in pointers["activations"]]
        if self._kind is Format.FP32:
            return self._group_of_floats(weights, activations, sums)
        counts = self._group_of_bytes(weights, activations)
        return self._scaled(pointers, index, counts, sums)

    def _group_of_floats(
        self, weights: ir.Value, activations: list[ir.Value], sums: list[list[ir.Value]]
    ) -> list[list[ir.Value]]:
        builder = self._builder
        for quarter in range(GROUP // 4):
            rows = [_load(builder, _at(builder, row, 16 * quarter), _FLOATS) for row in activations]
            for lane in range(4):
                position = quarter * 4 + lane
                for half in range(2):
                    column = _load(builder, _at(builder, weights, (2 * position + half) * 16), _FLOATS)
                    for row in range(self._rows):
                        sums[row][half] = _multiply_add(
                            builder, column, _splat(builder, rows[row], lane), sums[row][half]
                        )
        return sums

    def _group_of_bytes(self, weights: ir.Value, activations: list[ir.Value]) -> list[list[ir.Value]]:
        """Sums of products, in integers; 4-bit weights count sixteenfold, which `_scaled` takes back."""
        builder = self._builder
        nothing = ir.Constant(_COUNTS, [0] * _COUNTS.count)
        counts = [[nothing for _ in range(2)] for _ in range(self._rows)]
        columns: dict[tuple[int, int], ir.Value] = {}
        for quad in range(GROUP // 4):
            if quad % 4 == 0:
                rows = [
                    builder.bitcast(_load(builder, _at(builder, row, 4 * quad), _BYTES), _INTS)
                    for row in activations
                ]
            for half in range(2):
                column = self._column(weights, quad, half, columns)
                for row in range(self._rows):
                    spread = builder.bitcast(_splat(builder, rows[row], quad % 4), _BYTES)
                    counts[row][half] = _dot(builder, counts[row][half], column, spread)
        return [[_four_sums(builder, count) for count in row] for row in counts]

    def _column(
        self, weights: ir.Value, quad: int, half: int, upper: dict[tuple[int, int], ir.Value]
    ) -> ir.Value:
        """Four inputs of four channels. A byte of 4-bit weights holds two quads, the next one above."""
        builder = self._builder
        if self._kind is Format.INT8:
            return _load(builder, _at(builder, weights, (2 * quad + half) * 16), _BYTES)
        if quad % 2:
            return upper[quad - 1, half]
        both = _load(builder, _at(builder, weights, (quad + half) * 16), _BYTES)
        upper[quad, half] = builder.and_(both, ir.Constant(_BYTES, [-16] * 16))
        return builder.shl(both, ir.Constant(_BYTES, [4] * 16))

    def _scaled(
        self,
        pointers: dict[str, Any],
        index: ir.Value,
        counts: list[list[ir.Value]],
        sums: list[list[ir.Value]],
    ) -> list[list[ir.Value]]:
        builder = self._builder
        scales = builder.gep(
            pointers["scales"], [builder.mul(index, ir.Constant(_I64, self._kind.scales_per_group))]
        )
        loaded = [
            builder.fpext(_load(builder, _at(builder, scales, 4 * part), _HALFS), _FLOATS)
            for part in range(self._kind.scales_per_group // 4)
        ]
        for row in range(self._rows):
            worth = builder.load(builder.gep(pointers["sizes"][row], [index]))
            if self._kind is Format.INT4:
                worth = builder.fmul(worth, ir.Constant(_FLOAT, 1 / 16))
            size = _broadcast(builder, worth)
            for half in range(2):
                scale = builder.fmul(loaded[half], size)
                floats = builder.sitofp(counts[row][half], _FLOATS)
                sums[row][half] = _multiply_add(builder, floats, scale, sums[row][half])
            if self._kind is Format.INT4:
                total = _broadcast(builder, builder.load(builder.gep(pointers["totals"][row], [index])))
                for half in range(2):
                    sums[row][half] = _multiply_add(builder, loaded[2 + half], total, sums[row][half])
        return sums


def _pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


def make_tile(kind: Format, rows: int) -> Callable[..., None]:
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

            def rows_of(address: ir.Value, step: ir.Value, element: ir.Type) -> list[ir.Value]:
                steps = [builder.mul(step, ir.Constant(_I64, row)) for row in range(rows)]
                return [_pointer(builder, builder.add(address, offset), element) for offset in steps]

            pointers = {
                "weights": _pointer(builder, weights, _I8),
                "scales": _pointer(builder, scales, _HALF),
                "activations": rows_of(activations, stride, _I8),
                "sizes": rows_of(sizes, groups_stride, _FLOAT),
                "totals": rows_of(totals, groups_stride, _FLOAT),
            }
            begun = [
                _load(builder, _at(builder, row, 4 * half), _FLOATS)
                for row in rows_of(begin, begin_stride, _FLOAT)
                for half in range(2)
            ]
            sums = _loop(builder, _Tile(builder, kind, rows), pointers, groups, begun)
            for number, row in enumerate(rows_of(out, out_stride, _FLOAT)):
                for half in range(2):
                    _store(builder, sums[2 * number + half], _at(builder, row, 4 * half))
            return target.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return tile


def _store(builder: ir.IRBuilder, vector: ir.Value, pointer: ir.Value) -> None:
    stored = builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()))
    stored.align = 4


def _loop(
    builder: ir.IRBuilder, tile: _Tile, pointers: dict[str, Any], groups: ir.Value, begun: list[ir.Value]
) -> list[ir.Value]:
    def add_group(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        rows = [sums[first : first + 2] for first in range(0, len(sums), 2)]
        return [vector for row in tile.group(pointers, index, rows) for vector in row]

    return _counted(builder, ir.Constant(_I64, 0), groups, 1, begun, add_group)


# Attention sums over so many floats at once, for up to so many queries.
LANES, QUERIES = 16, 4


def floats(builder: ir.IRBuilder, row: ir.Value) -> list[ir.Value]:
    """The next sixteen numbers of a row, four at a time."""
    return [_load(builder, _at(builder, row, 16 * part), _FLOATS) for part in range(LANES // 4)]


def halfs(builder: ir.IRBuilder, row: ir.Value) -> list[ir.Value]:
    """The same from half precision."""
    parts = [_load(builder, _at(builder, row, 8 * part), _HALFS) for part in range(LANES // 4)]
    return [builder.fpext(part, _FLOATS) for part in parts]


def signed_bytes(builder: ir.IRBuilder, row: ir.Value) -> list[ir.Value]:
    """The same from bytes."""
    integers = builder.sext(_load(builder, row, _BYTES), ir.VectorType(_I32, LANES))
    numbers = builder.sitofp(integers, ir.VectorType(_FLOAT, LANES))
    nothing = ir.Constant(numbers.type, ir.Undefined)
    quarters = [list(range(first, first + 4)) for first in range(0, LANES, 4)]
    return [builder.shuffle_vector(numbers, nothing, ir.Constant(_INTS, lanes)) for lanes in quarters]


Lanes = Callable[[ir.IRBuilder, ir.Value], list[ir.Value]]


def make_combine(queries: int, adds: bool, lanes: Lanes) -> Callable[..., None]:
    """combine(shares, shares_stride, rows, rows_stride, count, out, out_stride).

    For each query, out[:16] = (or += where it `adds`) Σ shares[i] · rows[i][:16] over `count` rows, of what
    `lanes` reads. All are integers, strides in bytes. The sum runs from the first row to the last for any
    number of queries.
    """

    @intrinsic
    def combine(context, shares, shares_stride, rows, rows_stride, count, out, out_stride):
        def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            shares, shares_stride, rows, rows_stride, count, out, out_stride = values
            parts = range(LANES // 4)

            def query(address: ir.Value, stride: ir.Value, number: int) -> ir.Value:
                offset = builder.mul(stride, ir.Constant(_I64, number))
                return _pointer(builder, builder.add(address, offset), _FLOAT)

            shares_of = [query(shares, shares_stride, number) for number in range(queries)]
            out_of = [query(out, out_stride, number) for number in range(queries)]

            def add_row(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                row = _pointer(builder, builder.add(rows, builder.mul(index, rows_stride)), _I8)
                loaded = lanes(builder, row)
                result = []
                for number in range(queries):
                    share = _broadcast(builder, builder.load(builder.gep(shares_of[number], [index])))
                    for part in parts:
                        total = sums[number * len(parts) + part]
                        result.append(_multiply_add(builder, loaded[part], share, total))
                return result

            places = [_at(builder, pointer, 4 * part) for pointer in out_of for part in parts]
            if adds:
                begun = [_load(builder, place, _FLOATS) for place in places]
            else:
                begun = [ir.Constant(_FLOATS, [0.0] * 4) for _ in places]
            sums = _counted(builder, ir.Constant(_I64, 0), count, 1, begun, add_row)
            for vector, place in zip(sums, places, strict=True):
                _store(builder, vector, place)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return combine


@intrinsic
def widen(context, source, count, target):
    """So many halfs, in whole vectors, as floats."""

    def generate(to: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        source, count, target = values

        def copy(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            here = builder.add(source, builder.mul(index, ir.Constant(_I64, 2)))
            there = builder.add(target, builder.mul(index, ir.Constant(_I64, 4)))
            for part, vector in enumerate(halfs(builder, _pointer(builder, here, _I8))):
                _store(builder, vector, _at(builder, _pointer(builder, there, _FLOAT), 4 * part))
            return sums

        _counted(builder, ir.Constant(_I64, 0), count, LANES, [], copy)
        return to.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def store_float(context, address, value):
    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        builder.store(values[1], _pointer(builder, values[0], _FLOAT))
        return target.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def store_half(context, address, value):
    """What is too large for half precision becomes the largest there is; not a number stays none."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        address, value = values
        for sign, is_beyond in ((1, ">"), (-1, "<")):
            limit = ir.Constant(_FLOAT, sign * LARGEST_HALF)
            value = builder.select(builder.fcmp_ordered(is_beyond, value, limit), limit, value)
        builder.store(builder.fptrunc(value, _HALF), _pointer(builder, address, _HALF))
        return target.get_dummy_value()

    return types.void(types.int64, types.float32), generate


def _counted(
    builder: ir.IRBuilder,
    first: ir.Value,
    end: ir.Value,
    step: int,
    begun: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """for index in range(first, end, step): sums = body(index, sums)."""
    before = builder.block
    check, inside, after = (builder.append_basic_block(name) for name in ("check", "inside", "after"))
    builder.branch(check)
    builder.position_at_end(check)
    index = builder.phi(_I64)
    index.add_incoming(first, before)
    carried = [builder.phi(value.type) for value in begun]
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    sums = body(index, list(carried))
    index.add_incoming(builder.add(index, ir.Constant(_I64, step)), builder.block)
    for phi, start, result in zip(carried, begun, sums, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, builder.block)
    builder.branch(check)
    builder.position_at_end(after)
    return list(carried)
