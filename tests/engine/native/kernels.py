"""The kernels' innermost functions behind wrappers that take arrays; compiled once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from python_backend.engine.native import attention
from python_backend.engine.native.addresses import address_of
from python_backend.engine.native.amx import NEVER, begin_tiles, end_tiles, spread
from python_backend.engine.native.arithmetic import STEP_OPTIONS, exponential, hyperbolic_tangent, quantize
from python_backend.engine.native.combining import LANES, store_half
from python_backend.engine.native.microkernel import CHANNELS, GROUP, MOST_ROWS, Format, make_tile
from python_backend.engine.native.products import buffer_floats, product
from python_backend.engine.native.tables import Inputs, Matrix
from python_backend.engine.native.threads import FIRST_FREE, Team, meet, take_number
from python_backend.engine.native.vectors import Vectors
from python_backend.engine.native.weight_layouts import Packed, whole

Floats = NDArray[np.float32]
Function = TypeVar("Function", bound=Callable[..., None])
# mypy takes them for functions of one argument more.
_store_half: Any = store_half
_begin_tiles: Any = begin_tiles
_end_tiles: Any = end_tiles
_spread: Any = spread
_score_floats, _score_halfs = attention._score_floats, attention._score_halfs
_weigh_floats, _weigh_halfs = attention._weigh_floats, attention._weigh_halfs


def compiled(function: Function) -> Function:
    """As the step itself is."""
    compile_later: Any = njit(**STEP_OPTIONS)
    compiling: Function = compile_later(function)
    return compiling


@compiled
def curves(values: Any, exponentials: Any, tangents: Any) -> None:
    for i in range(len(values)):
        exponentials[i] = exponential(values[i])
        tangents[i] = hyperbolic_tangent(values[i])


@compiled
def round_rows(inputs: Any) -> None:
    for row in range(inputs.floats.shape[0]):
        for group in range(inputs.floats.shape[1] // GROUP):
            quantize(inputs, row, group)


@compiled
def _multiply(
    kind: Any,
    matrix: Any,
    rows: Any,
    wide_from: Any,
    inputs: Any,
    adds: Any,
    out: Any,
    tile: Any,
    counters: Any,
) -> None:
    if rows >= wide_from:
        _begin_tiles()
    product(kind, matrix, rows, wide_from, inputs, adds, out, tile, counters, 1, 1)
    if rows >= wide_from:
        _end_tiles()


@compiled
def spread_nibbles(nibbles: Any, groups: Any, out: Any) -> None:
    _spread(nibbles.ctypes.data, groups, out.ctypes.data)


def times_one_tile(kind: Format, vectors: Vectors) -> Callable[[Packed, Inputs, Floats, Floats], None]:
    """Four rows times eight channels, from sums that have begun, by the instructions of any processor."""
    tile: Any = make_tile(kind, MOST_ROWS, vectors)

    @compiled
    def run(
        w: Any, s: Any, a: Any, a_step: Any, sizes: Any, totals: Any, groups: Any, begin: Any, out: Any
    ) -> None:
        step = np.int64(4 * CHANNELS)
        tile(w, s, a, a_step, sizes, totals, 4 * groups, groups, begin, step, out, step)

    def multiply_tile(packed: Packed, inputs: Inputs, begin: Floats, out: Floats) -> None:
        rows = inputs.floats if kind is Format.FP32 else inputs.levels
        arrays = packed.weights, packed.scales, rows, inputs.worths, inputs.totals, begin, out
        w, s, a, sizes, totals, first, last = (np.int64(array.ctypes.data) for array in arrays)
        groups = np.int64(inputs.worths.shape[1])
        run(w, s, a, np.int64(rows.strides[0]), sizes, totals, groups, first, last)

    return multiply_tile


def times_two_tiles_laid_out(
    lay_out: Any, tile: Any, group_bytes: int
) -> Callable[[Packed, Inputs, Floats, Floats], None]:
    """A few rows times two tiles, all of which begin with the same sums."""

    @compiled
    def run(matrix: Any, inputs: Any, begin: Any, laid_out: Any, out: Any) -> None:
        w, s, to = matrix.weights.ctypes.data, matrix.scales.ctypes.data, laid_out.ctypes.data
        a, a_step = inputs.levels.ctypes.data, inputs.levels.strides[0]
        sizes, totals, g_step = inputs.worths.ctypes.data, inputs.totals.ctypes.data, inputs.worths.strides[0]
        groups, first, last = inputs.worths.shape[1], begin.ctypes.data, out.ctypes.data
        lay_out(w, s, 2 * groups, to)
        tile(to, a, a_step, sizes, totals, g_step, groups, first, 0, last, out.strides[0], 4 * CHANNELS)

    def multiply_rows(packed: Packed, inputs: Inputs, begin: Floats, out: Floats) -> None:
        laid_out = np.zeros(2 * inputs.worths.shape[1] * group_bytes, np.uint8)
        run(Matrix(packed.weights, packed.scales, begin), inputs, begin, laid_out, out)

    return multiply_rows


@compiled
def _combine(adds: Any, are_halfs: Any, shares: Any, rows: Any, count: Any, out: Any) -> None:
    queries = shares.shape[0]
    share, row, target = shares.ctypes.data, rows.ctypes.data, out.ctypes.data
    share_step, row_step, step = shares.strides[0], rows.strides[0], out.strides[0]
    if are_halfs and adds:
        _weigh_halfs(queries, share, share_step, row, row_step, count, target, step)
    elif are_halfs:
        _score_halfs(queries, share, share_step, row, row_step, count, target, step)
    elif adds:
        _weigh_floats(queries, share, share_step, row, row_step, count, target, step)
    else:
        _score_floats(queries, share, share_step, row, row_step, count, target, step)


@compiled
def _store_halfs(values: Any, out: Any) -> None:
    for i in range(len(values)):
        _store_half(out.ctypes.data + 2 * i, values[i])


@compiled
def meet_often(me: Any, threads: Any, times: Any, seen: Any, counters: Any) -> None:
    """Each thread writes the round it is in, meets the others, and counts those that are not in it too."""
    for round_ in range(times):
        seen[me] = round_
        meet(counters, threads)
        for other in range(threads):
            if seen[other] != round_:
                seen[threads] += 1
        meet(counters, threads)


@compiled
def take_all(me: Any, threads: Any, taken: Any, counters: Any) -> None:
    """taken[number] counts how often a number was handed out."""
    while True:
        number = take_number(counters, FIRST_FREE)
        if number >= len(taken):
            break
        taken[number] += 1
    meet(counters, threads)


@compiled
def say_number(me: Any, threads: Any, numbers: Any, counters: Any) -> None:
    numbers[me] = me + 1
    meet(counters, threads)


def run_on(team: Team, work: Any, *told: Any) -> None:
    """On every thread of the team."""
    team.run(address_of(work, (numba.int64, *map(numba.typeof, told))), told)


def rounded(rows: Floats) -> Inputs:
    """Rows as a product takes them in, padded to whole groups."""
    floats = np.zeros((len(rows), whole(rows.shape[1], GROUP)), np.float32)
    floats[:, : rows.shape[1]] = rows
    groups = floats.shape[1] // GROUP
    worths = np.zeros((len(rows), groups), np.float32)
    inputs = Inputs(floats, np.zeros(floats.shape, np.int8), worths, np.zeros_like(worths))
    round_rows(inputs)
    return inputs


def multiply(
    packed: Packed,
    kind: Format,
    rows: Floats,
    out: Floats,
    bias: Floats | None = None,
    adds: bool = False,
    wide_from: int = int(NEVER),
) -> Floats:
    matrix = Matrix(packed.weights, packed.scales, np.zeros(0, np.float32) if bias is None else bias)
    tile, counters = np.zeros(buffer_floats(rows.shape[1]), np.float32), np.zeros(2, np.int64)
    _multiply(int(kind), matrix, len(rows), wide_from, rounded(rows), adds, out, tile, counters)
    return out


def combine(shares: Floats, rows: NDArray[Any], out: Floats, adds: bool) -> Floats:
    """`rows` are floats or halfs."""
    assert rows.shape[1] == out.shape[1] == LANES
    are_halfs = rows.dtype == np.float16
    _combine(adds, are_halfs, shares, rows.view(np.uint8), shares.shape[1], out)
    return out


def as_halfs(values: Floats) -> NDArray[np.float16]:
    """As the cache keeps keys and values."""
    out = np.zeros(len(values), np.uint16)
    _store_halfs(values, out)
    return out.view(np.float16)
