"""Levels of a matrix in groups, as they lie in memory, and the numbers that they are.

Words of 16 bits hold four levels. Two words fill a register, of which one mask takes two levels, already
where the tensor cores want a pair of numbers; what triton-lang makes of the same takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.skinny_product import numbers_of_bytes

# How levels lie in memory.
IN_BYTES, INT4_WORDS, E2M1_WORDS = (tl.constexpr(number) for number in range(3))
_MINUS_ZEROS = 0x80008000


def _int4_pair(pair: int) -> str:
    """128 + n is a bfloat16 with n in its last bits."""
    return f"""
    shr.b32 number, $4, {4 * pair};
    lop3.b32 number, number, 0x000F000F, 0x43004300, 0xEA;
    """


def _e2m1_pair(pair: int) -> str:
    """Sign, exponent and mantissa where a bfloat16 has them: too small by 2**127 then."""
    by = 6 - 4 * pair
    return f"""
    shl.b32 sign, $4, {12 - 4 * pair};
    and.b32 sign, sign, 0x80008000;
    {"shl" if by > 0 else "shr"}.b32 number, $4, {abs(by)};
    lop3.b32 number, number, 0x01C001C0, sign, 0xEA;
    """


def _asm(pair_of: Callable[[int], str], factor: int, less: int, is_scaled: bool, has_offsets: bool) -> str:
    """From two words in $4 four pairs of numbers; $5 to $8 have their scales, $9 to $12 their offsets."""
    lines = "{\n.reg .b32 number, sign, factor, less, zeros;\n"
    lines += f"mov.b32 factor, {factor:#x};\nmov.b32 less, {less:#x};\nmov.b32 zeros, {_MINUS_ZEROS:#x};\n"
    for pair in range(4):
        lines += f"{pair_of(pair)}fma.rn.bf16x2 ${pair}, number, factor, less;\n"
        if is_scaled:
            offset = f"${9 + pair}" if has_offsets else "zeros"
            lines += f"fma.rn.bf16x2 ${pair}, ${pair}, ${5 + pair}, {offset};\n"
    return lines + "}"


def _forms(pair_of: Callable[[int], str], factor: int, less: int) -> list[tl.constexpr]:
    """As they are; scaled; scaled and with offsets."""
    kinds = ((False, False), (True, False), (True, True))
    return [tl.constexpr(_asm(pair_of, factor, less, *kind)) for kind in kinds]


_INT4, _INT4_SCALED, _INT4_OFFSET = _forms(_int4_pair, 0x3F803F80, 0xC308C308)
_E2M1, _E2M1_SCALED, _E2M1_OFFSET = _forms(_e2m1_pair, 0x7F007F00, _MINUS_ZEROS)

# 16 + n and 256 + n are floats with n in the first bits behind the point.
_INT4_FLOATS = tl.constexpr("""
{
    .reg .b32 w<5>;
    shl.b32 w0, $8, 19;
    shl.b32 w1, $8, 11;
    shl.b32 w2, $8, 3;
    shr.b32 w3, $8, 5;
    shr.b32 w4, $8, 13;
    lop3.b32 $0, w0, 0x00780000, 0x41800000, 0xEA;
    lop3.b32 $1, w2, 0x00780000, 0x41800000, 0xEA;
    lop3.b32 $2, w1, 0x00078000, 0x43800000, 0xEA;
    lop3.b32 $3, w3, 0x00078000, 0x43800000, 0xEA;
    lop3.b32 $4, w1, 0x00780000, 0x41800000, 0xEA;
    lop3.b32 $5, w3, 0x00780000, 0x41800000, 0xEA;
    lop3.b32 $6, w2, 0x00078000, 0x43800000, 0xEA;
    lop3.b32 $7, w4, 0x00078000, 0x43800000, 0xEA;
}
""")


@triton.jit
def _number(words, place: tl.constexpr, LAYOUT: tl.constexpr):
    """One level of each word, in fp32."""
    code = (words.to(tl.int32) >> (4 * place)) & 15
    if LAYOUT == INT4_WORDS:
        return code.to(tl.float32) - 8.0
    size = code & 7
    size = tl.where(size < 2, size, (2 + (size & 1)) << tl.maximum((size >> 1) - 1, 0))
    return tl.where(code > 7, -size, size).to(tl.float32)


@triton.jit
def _plain(words, LAYOUT: tl.constexpr):
    return (
        _number(words, 0, LAYOUT),
        _number(words, 1, LAYOUT),
        _number(words, 2, LAYOUT),
        _number(words, 3, LAYOUT),
    )


@triton.jit
def _numbers_of_words(levels, LAYOUT: tl.constexpr, dtype: tl.constexpr):
    if dtype == tl.bfloat16:
        asm: tl.constexpr = _INT4 if LAYOUT == INT4_WORDS else _E2M1
        return tl.inline_asm_elementwise(
            asm,
            "=&r,=&r,=&r,=&r,r",
            [levels],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    first, second, third, fourth = _plain(levels, LAYOUT)
    return first.to(dtype), second.to(dtype), third.to(dtype), fourth.to(dtype)


@triton.jit
def numbers_of(levels, LAYOUT: tl.constexpr, dtype: tl.constexpr):
    """The numbers of bytes, alone, or those of a word's four levels, one after the other."""
    if LAYOUT == IN_BYTES:
        found = (numbers_of_bytes(levels, dtype),)
    else:
        found = _numbers_of_words(levels, LAYOUT, dtype)
    return found


@triton.jit
def _spread(sizes, each: tl.constexpr, like):
    """The size of each output's group, for a tile of words."""
    return tl.broadcast_to(sizes[each * len(sizes) // 4].to(tl.bfloat16)[:, None], like.shape)


@triton.jit
def _scaled(number, scales, offsets, each: tl.constexpr, PER_WORD: tl.constexpr, HAS_OFFSETS: tl.constexpr):
    number *= scales[each * len(scales) // PER_WORD].to(tl.float32)[:, None]
    if HAS_OFFSETS:
        number += offsets[each * len(offsets) // PER_WORD].to(tl.float32)[:, None]
    return number


@triton.jit
def _scaled_numbers_of_words(
    levels, scales, offsets, HAS_OFFSETS: tl.constexpr, LAYOUT: tl.constexpr, dtype: tl.constexpr
):
    if dtype == tl.bfloat16:
        first, second = _spread(scales, 0, levels), _spread(scales, 1, levels)
        third, fourth = _spread(scales, 2, levels), _spread(scales, 3, levels)
        if HAS_OFFSETS:
            return tl.inline_asm_elementwise(
                _INT4_OFFSET if LAYOUT == INT4_WORDS else _E2M1_OFFSET,
                "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r",
                [
                    levels,
                    first,
                    second,
                    third,
                    fourth,
                    _spread(offsets, 0, levels),
                    _spread(offsets, 1, levels),
                    _spread(offsets, 2, levels),
                    _spread(offsets, 3, levels),
                ],
                (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        return tl.inline_asm_elementwise(
            _INT4_SCALED if LAYOUT == INT4_WORDS else _E2M1_SCALED,
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [levels, first, second, third, fourth],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    first, second, third, fourth = _plain(levels, LAYOUT)
    return (
        _scaled(first, scales, offsets, 0, 4, HAS_OFFSETS).to(dtype),
        _scaled(second, scales, offsets, 1, 4, HAS_OFFSETS).to(dtype),
        _scaled(third, scales, offsets, 2, 4, HAS_OFFSETS).to(dtype),
        _scaled(fourth, scales, offsets, 3, 4, HAS_OFFSETS).to(dtype),
    )


@triton.jit
def scaled_numbers_of(
    levels, scales, offsets, HAS_OFFSETS: tl.constexpr, LAYOUT: tl.constexpr, dtype: tl.constexpr
):
    """The same times their scales, and with their offsets: as many as a word's levels have groups."""
    if LAYOUT == IN_BYTES:
        number = numbers_of_bytes(levels, dtype).to(tl.float32)
        found = (_scaled(number, scales, offsets, 0, 1, HAS_OFFSETS).to(dtype),)
    else:
        found = _scaled_numbers_of_words(levels, scales, offsets, HAS_OFFSETS, LAYOUT, dtype)
    return found


@triton.jit
def _floats_of_words(words, LAYOUT: tl.constexpr, is_quick: tl.constexpr):
    if not is_quick:
        return _plain(words, LAYOUT)
    if LAYOUT == INT4_WORDS:
        return tl.inline_asm_elementwise(
            _INT4_FLOATS,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r",
            [words],
            (tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True,
            pack=2,
        )
    first, second, third, fourth = _numbers_of_words(words, LAYOUT, tl.bfloat16)
    return first.to(tl.float32), second.to(tl.float32), third.to(tl.float32), fourth.to(tl.float32)


@triton.jit
def floats_of(levels, LAYOUT: tl.constexpr, is_quick: tl.constexpr):
    """The same in fp32; `is_quick`, they are too large by `excess`, which costs less than to subtract it."""
    return (levels.to(tl.float32),) if LAYOUT == IN_BYTES else _floats_of_words(levels, LAYOUT, is_quick)


@triton.constexpr_function
def excess(each: int, layout: int, is_quick: bool) -> float:
    """By how much a word's floats are too large."""
    return (24.0, 264.0)[each % 2] if is_quick and layout == INT4_WORDS else 0.0
