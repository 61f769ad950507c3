"""Small functions that are compiled into the step: exponentials, activations, rounding to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from python_backend.engine.models.decoder import Activation
from python_backend.engine.native.microkernel import GROUP

# Sums may be reordered for vector units, but a value that is not a number stays one.
FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
# Nothing is allocated in them: references to arrays are not counted, which would take long to compile.
STEP_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": FAST,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
# Only the step itself is called from Python: the others need no way in from there.
OPTIONS = {**STEP_OPTIONS, "inline": "never", "no_cpython_wrapper": True}
# As arguments of a function, Python's own numbers would have it compiled once more for each of them.
NOUGHT, ONE, NO = np.int64(0), np.int64(1), np.bool_(False)

_LOG2_E = np.float32(1.4426950408889634)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
_C1, _C2, _C3 = (
    np.float32(0.6931471805599453),
    np.float32(0.2402265069591007),
    np.float32(0.05550410866482158),
)
_C4, _C5 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443)
_C6 = np.float32(0.00015403530393381608)
_ONE, _TWO, _ZERO = np.float32(1.0), np.float32(2.0), np.float32(0.0)
# What a step is told instead of an activation: its place here.
ACTIVATIONS = (Activation.SILU, Activation.GELU_TANH, Activation.CLAMPED_SWIGLU)
_GELU_TANH, _CLAMPED_SWIGLU = np.int64(1), np.int64(2)
_SWIGLU_SLOPE = np.float32(1.702)
_GELU_A, _GELU_B = np.float32(0.7978845608028654), np.float32(0.044715)
# A group smaller than this counts as zeros: its scale would have no inverse.
_SMALLEST = np.float32(1e-30)


@intrinsic
def float_of_bits(context, bits):
    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(**OPTIONS)
def exponential(x):
    """eˣ to fp32's precision, without a call, so that loops over it become vector code."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    powers = x * _LOG2_E
    nearest = np.floor(powers + np.float32(0.5))
    f = powers - nearest
    series = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return series * float_of_bits((np.int32(nearest) + np.int32(127)) << np.int32(23))


@njit(**OPTIONS)
def hyperbolic_tangent(x):
    return _ONE - _TWO / (_ONE + exponential(_TWO * x))


# An index that may be negative is asked at every turn whether it is, and the loop does not become vector
# code: places inside a row are therefore counted without a sign.
place = np.uint64


@njit(**OPTIONS)
def activate_group(gates_ups, at, activation, limit, out, row, group):
    """A group of `out` = activation of the 32 gates from `at` on · the 32 ups that follow them."""
    gates, ups, target = place(at), place(at + GROUP), place(group * GROUP)
    if activation == _CLAMPED_SWIGLU:
        for k in range(GROUP):
            i = place(k)
            gate, up = gates_ups[gates + i], gates_ups[ups + i]
            gate = limit if gate > limit else gate
            up = limit if up > limit else up
            up = -limit if up < -limit else up
            out[row, target + i] = gate / (_ONE + exponential(-_SWIGLU_SLOPE * gate)) * (up + _ONE)
    elif activation == _GELU_TANH:
        for k in range(GROUP):
            i = place(k)
            x = gates_ups[gates + i]
            curve = hyperbolic_tangent(_GELU_A * (x + _GELU_B * x * x * x))
            out[row, target + i] = np.float32(0.5) * x * (_ONE + curve) * gates_ups[ups + i]
    else:
        for k in range(GROUP):
            i = place(k)
            gate = gates_ups[gates + i]
            out[row, target + i] = gate / (_ONE + exponential(-gate)) * gates_ups[ups + i]


@njit(**OPTIONS)
def quantize(inputs, row, group):
    """Rounds 32 floats to bytes, and says what a byte is worth and what the bytes sum up to.

    Where a value is not a finite number, nor is the worth, so that it is not lost on the way to the logits.
    """
    first = place(group * GROUP)
    largest = _ZERO
    poison = _ZERO
    for k in range(GROUP):
        value = inputs.floats[row, first + place(k)]
        size = abs(value)
        largest = size if size > largest else largest
        poison += value * _ZERO
    inverse = np.float32(127.0) / largest if largest > _SMALLEST and poison == _ZERO else _ZERO
    total = np.int32(0)
    for k in range(GROUP):
        i = first + place(k)
        level = np.int32(np.rint(inputs.floats[row, i] * inverse))
        inputs.levels[row, i] = np.int8(level)
        total += level
    worth = largest / np.float32(127.0) + poison
    inputs.worths[row, group] = worth
    inputs.totals[row, group] = np.float32(total)
