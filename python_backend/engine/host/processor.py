"""Which of the CPU's instructions the engine's kernels use."""

from __future__ import annotations

import platform
from enum import Enum
from pathlib import Path


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
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Instructions.ANY
    lines = (line.partition(":") for line in told.splitlines())
    flags = next((value for name, _, value in lines if name.strip().lower() in ("flags", "features")), "")
    return instructions_in(set(flags.split()), platform.machine())
