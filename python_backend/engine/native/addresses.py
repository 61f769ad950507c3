"""Compiled functions called by their addresses, so that they need not be compiled together."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic


def address_of(function: Any, signature: tuple[Any, ...]) -> int:
    """Compiled for these types, or loaded as it was kept; it is there for as long as the function is."""
    with global_compiler_lock:
        function.compile(signature)
        made = function.overloads[signature]
        address: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
        return address


def flattened(target: Any, builder: ir.IRBuilder, kinds: list[Any], told: ir.Value) -> list[ir.Value]:
    """What a tuple of these types has in it, as a compiled function takes it."""
    values = cgutils.unpack_tuple(builder, told, len(kinds))
    found: list[ir.Value] = target.get_arg_packer(kinds).as_arguments(builder, values)
    return found


def emit_call(
    target: Any, builder: ir.IRBuilder, address: ir.Value, kinds: list[Any], arguments: list[ir.Value]
) -> None:
    """Calls what lies there: it takes exactly these types, flattened, and neither returns nor raises."""
    kind = target.call_conv.get_function_type(types.none, kinds)
    # What it would return, and what it would raise, have places all the same.
    places = [cgutils.alloca_once(builder, each.pointee) for each in kind.args[:2]]
    builder.call(builder.inttoptr(address, kind.as_pointer()), [*places, *arguments])


@intrinsic
def call_at(context, address, told):
    """The function there: it takes what is told, by exactly these types, and neither returns nor raises."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        kinds = list(told)
        emit_call(target, builder, values[0], kinds, flattened(target, builder, kinds, values[1]))
        return target.get_dummy_value()

    return types.void(types.int64, told), generate
