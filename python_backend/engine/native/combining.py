"""Sums of rows, each times its share, and numbers in half precision: what attention and adapters compute.

Written for the compiler as the products are, see microkernel.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from python_backend.engine.native.microkernel import LARGEST_HALF
from python_backend.engine.native.vectors import (
    FLOAT,
    HALF,
    I8,
    I32,
    I64,
    VECTORS,
    at,
    broadcast,
    chosen,
    counted,
    load,
    multiply_add,
    pointer_to,
    store,
)

# So many floats at once, for up to so many queries.
LANES, QUERIES = 16, 4
# As many as one instruction takes, and how many of those there are.
_WIDTH = VECTORS.lanes
_PARTS = LANES // _WIDTH

Lanes = Callable[[ir.IRBuilder, ir.Value], list[ir.Value]]


def floats(builder: ir.IRBuilder, row: ir.Value) -> list[ir.Value]:
    """The next sixteen numbers of a row, a vector at a time."""
    return [load(builder, at(builder, row, 4 * _WIDTH * part), VECTORS.floats) for part in range(_PARTS)]


def halfs(builder: ir.IRBuilder, row: ir.Value) -> list[ir.Value]:
    """The same from half precision."""
    parts = [load(builder, at(builder, row, 2 * _WIDTH * part), VECTORS.halfs) for part in range(_PARTS)]
    return [builder.fpext(part, VECTORS.floats) for part in parts]


def signed_bytes(builder: ir.IRBuilder, row: ir.Value) -> list[ir.Value]:
    """The same from bytes."""
    integers = builder.sext(load(builder, row, ir.VectorType(I8, LANES)), ir.VectorType(I32, LANES))
    numbers = builder.sitofp(integers, ir.VectorType(FLOAT, LANES))
    return [chosen(builder, numbers, list(range(first, first + _WIDTH))) for first in range(0, LANES, _WIDTH)]


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

            def query(address: ir.Value, stride: ir.Value, number: int) -> ir.Value:
                offset = builder.mul(stride, ir.Constant(I64, number))
                return pointer_to(builder, builder.add(address, offset), FLOAT)

            shares_of = [query(shares, shares_stride, number) for number in range(queries)]
            out_of = [query(out, out_stride, number) for number in range(queries)]

            def add_row(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                row = pointer_to(builder, builder.add(rows, builder.mul(index, rows_stride)), I8)
                loaded = lanes(builder, row)
                result = []
                for number in range(queries):
                    share = broadcast(builder, builder.load(builder.gep(shares_of[number], [index])), _WIDTH)
                    for part in range(_PARTS):
                        total = sums[number * _PARTS + part]
                        result.append(multiply_add(builder, loaded[part], share, total))
                return result

            places = [at(builder, pointer, _WIDTH * part) for pointer in out_of for part in range(_PARTS)]
            if adds:
                begun = [load(builder, place, VECTORS.floats) for place in places]
            else:
                begun = [ir.Constant(VECTORS.floats, [0.0] * _WIDTH) for _ in places]
            for vector, place in zip(counted(builder, count, 1, begun, add_row), places, strict=True):
                store(builder, vector, place)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return combine


@intrinsic
def widen(context, source, count, target):
    """So many halfs, in whole vectors, as floats."""

    def generate(to: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        source, count, target = values

        def copy(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            here = builder.add(source, builder.mul(index, ir.Constant(I64, 2)))
            there = builder.add(target, builder.mul(index, ir.Constant(I64, 4)))
            for part, vector in enumerate(halfs(builder, pointer_to(builder, here, I8))):
                store(builder, vector, at(builder, pointer_to(builder, there, FLOAT), _WIDTH * part))
            return sums

        counted(builder, count, LANES, [], copy)
        return to.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def store_float(context, address, value):
    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        builder.store(values[1], pointer_to(builder, values[0], FLOAT))
        return target.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def store_half(context, address, value):
    """What is too large for half precision becomes the largest there is; not a number stays none."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        address, value = values
        for sign, is_beyond in ((1, ">"), (-1, "<")):
            limit = ir.Constant(FLOAT, sign * LARGEST_HALF)
            value = builder.select(builder.fcmp_ordered(is_beyond, value, limit), limit, value)
        builder.store(builder.fptrunc(value, HALF), pointer_to(builder, address, HALF))
        return target.get_dummy_value()

    return types.void(types.int64, types.float32), generate
