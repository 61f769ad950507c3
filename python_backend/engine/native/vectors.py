"""What one instruction computes on this processor, for loops that are written for the compiler."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import Enum

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import config
from numba.core import cgutils

from python_backend.engine.host.processor import Instructions, cpu_flags, cpu_instructions

I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
FLOAT, HALF = ir.FloatType(), ir.HalfType()
# What is added to signed bytes where an instruction wants unsigned ones.
BIAS = 128


class Dot(Enum):
    """How four bytes are multiplied with four others and summed up.

    IN_PAIRS: in twice as many sums, which are added in the end. BIASED: by an instruction that takes one side
    without a sign, so that BIAS times the sum of the other side is too much in the end.
    """

    SIGNED = "dot products"
    BIASED = "VNNI"
    IN_PAIRS = "pairs"


@dataclass(frozen=True, slots=True)
class Vectors:
    """So many floats at once, or four times as many bytes."""

    lanes: int
    dot: Dot

    @property
    def floats(self) -> ir.VectorType:
        return ir.VectorType(FLOAT, self.lanes)

    @property
    def halfs(self) -> ir.VectorType:
        return ir.VectorType(HALF, self.lanes)

    @property
    def bytes(self) -> ir.VectorType:
        return ir.VectorType(I8, 4 * self.lanes)

    @property
    def counts(self) -> ir.VectorType:
        """Sums of products of bytes on the way."""
        return ir.VectorType(I32, self.lanes * (2 if self.dot is Dot.IN_PAIRS else 1))


_NEEDED = {
    Instructions.DOT_PRODUCTS: {"+dotprod"},
    Instructions.AVX512_VNNI: {"+avx512vnni", "+avx512vl"},
    Instructions.AVX_VNNI: {"+avxvnni"},
    Instructions.AVX2: {"+avx2"},
}
# Linux's names and LLVM's.
_OF_ARM = {"asimddp": "+dotprod", "i8mm": "+i8mm"}


def vectors_of(instructions: Instructions, features: Set[str]) -> Vectors:
    """`features` are those of the processor that numba compiles for: `+name` or `-name`."""
    if instructions not in _NEEDED or not _NEEDED[instructions] <= features:
        return Vectors(4, Dot.IN_PAIRS)
    if instructions is Instructions.DOT_PRODUCTS:
        return Vectors(4, Dot.SIGNED)
    return Vectors(8, Dot.IN_PAIRS if instructions is Instructions.AVX2 else Dot.BIASED)


def _features() -> str:
    if config.CPU_FEATURES is not None:  # type: ignore[attr-defined]
        return str(config.CPU_FEATURES)  # type: ignore[attr-defined]
    if config.CPU_NAME == "generic":  # type: ignore[attr-defined]
        return ""
    return ",".join((get_host_cpu_features().flatten(), *_implied()))


def _implied() -> list[str]:
    """Of what an Arm processor has LLVM tells a part; the rest is in its name, if LLVM knows it."""
    name = get_host_cpu_name()
    if name == "generic" or config.CPU_NAME not in (None, name):  # type: ignore[attr-defined]
        return []
    return [feature for flag, feature in _OF_ARM.items() if flag in cpu_flags()]


FEATURES = frozenset(_features().split(","))
HAS_SMMLA = "+i8mm" in FEATURES
VECTORS = vectors_of(cpu_instructions(), FEATURES)
HAS_WIDE_VNNI = VECTORS.dot is Dot.BIASED and {"+avx512vnni", "+avx512bw"} <= FEATURES
# By how many sums it adds to.
_VNNI = {8: "llvm.x86.avx512.vpdpbusd.256"} | ({16: "llvm.x86.avx512.vpdpbusd.512"} if HAS_WIDE_VNNI else {})


def at(builder: ir.IRBuilder, pointer: ir.Value, offset: int) -> ir.Value:
    return builder.gep(pointer, [ir.Constant(I64, offset)])


def pointer_to(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: ir.IRBuilder, pointer: ir.Value, kind: ir.Type) -> ir.Value:
    loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    loaded.align = 1
    return loaded


def store(builder: ir.IRBuilder, vector: ir.Value, pointer: ir.Value) -> None:
    stored = builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()))
    stored.align = 4


def chosen(builder: ir.IRBuilder, vector: ir.Value, lanes: list[int]) -> ir.Value:
    """Those lanes of a vector, as another one."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, nothing, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def broadcast(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    nothing = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    return chosen(builder, builder.insert_element(nothing, scalar, ir.Constant(I32, 0)), [0] * lanes)


def multiply_add(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(total.type, [total.type] * 3),
        f"llvm.fma.v{total.type.count}f32",
    )
    return builder.call(function, (left, right, total))


def dot(
    builder: ir.IRBuilder, how: Dot, total: ir.Value, weights: ir.Value, activations: ir.Value
) -> ir.Value:
    """Adds to each sum the product of four bytes with four others; biased, the weights have no sign."""
    if how is Dot.SIGNED:
        name, types = "llvm.aarch64.neon.sdot.v4i32.v16i8", (total.type, weights.type, activations.type)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(total.type, types), name)
        return builder.call(function, (total, weights, activations))
    if how is Dot.BIASED and VECTORS.dot is Dot.BIASED and total.type.count in _VNNI:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(total.type, [total.type] * 3), _VNNI[total.type.count]
        )
        whole = (builder.bitcast(each, total.type) for each in (weights, activations))
        return builder.call(function, (total, *whole))
    wide = ir.VectorType(I32, weights.type.count)
    left = builder.zext(weights, wide) if how is Dot.BIASED else builder.sext(weights, wide)
    products = builder.mul(left, builder.sext(activations, wide))
    while products.type.count > total.type.count:
        products = sum_of_neighbours(builder, products)
    return builder.add(total, products)


def sum_of_neighbours(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Half as many lanes; from products of bytes, x86 does it in one instruction."""
    lanes = range(0, vector.type.count, 2)
    even, odd = chosen(builder, vector, list(lanes)), chosen(builder, vector, [lane + 1 for lane in lanes])
    return builder.add(even, odd)


def counted(
    builder: ir.IRBuilder,
    end: ir.Value,
    step: int,
    begun: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """for index in range(0, end, step): sums = body(index, sums)."""
    before = builder.block
    check, inside, after = (builder.append_basic_block(name) for name in ("check", "inside", "after"))
    builder.branch(check)
    builder.position_at_end(check)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), before)
    carried = [builder.phi(value.type) for value in begun]
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    sums = body(index, list(carried))
    index.add_incoming(builder.add(index, ir.Constant(I64, step)), builder.block)
    for phi, start, result in zip(carried, begun, sums, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, builder.block)
    builder.branch(check)
    builder.position_at_end(after)
    return list(carried)
