"""Which of the CPU's instructions the engine's kernels use."""

from __future__ import annotations

import ctypes
import platform
from enum import Enum
from pathlib import Path

_AMX = {"amx_tile", "amx_int8"}
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


class Instructions(str, Enum):
    """As people call them."""

    DOT_PRODUCTS = "NEON with dot products"
    AVX512_VNNI = "AVX-512 VNNI"
    AVX_VNNI = "AVX-VNNI"
    AVX2 = "AVX2"
    ANY = "vectors of 128 bits"


def instructions_in(flags: set[str], machine: str) -> Instructions:
    """By Linux's names for what a processor can do, which may be another one that emulates this."""
    if machine == "aarch64":
        return Instructions.DOT_PRODUCTS if "asimddp" in flags else Instructions.ANY
    if {"avx512_vnni", "avx512vl"} <= flags:
        return Instructions.AVX512_VNNI
    if "avx_vnni" in flags:
        return Instructions.AVX_VNNI
    return Instructions.AVX2 if "avx2" in flags else Instructions.ANY


def cpu_instructions() -> Instructions:
    return instructions_in(cpu_flags(), platform.machine())


def is_amx_permitted() -> bool:
    """Asks Linux for the room that a thread's tiles take; once for the whole process."""
    if not cpu_flags() >= _AMX:
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0)


def instructions_for(precision: str) -> str:
    """In words."""
    usual = cpu_instructions().value
    if precision == "fp32":
        return usual
    if "i8mm" in cpu_flags():
        return f"{usual} and i8mm"
    return f"{usual} and AMX" if is_amx_permitted() else usual


def cpu_flags() -> set[str]:
    """Linux's names for what this processor can do."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    lines = (line.partition(":") for line in told.splitlines())
    flags = next((value for name, _, value in lines if name.strip().lower() in ("flags", "features")), "")
    return set(flags.split())
