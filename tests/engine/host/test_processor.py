from __future__ import annotations

import platform
from pathlib import Path

import pytest

from python_backend.engine.host import processor
from python_backend.engine.host.processor import (
    Instructions,
    cpu_instructions,
    instructions_for,
    instructions_in,
    is_amx_permitted,
)


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("aarch64", "fp asimd asimddp", Instructions.DOT_PRODUCTS),
        ("aarch64", "fp asimd", Instructions.ANY),
        ("x86_64", "avx2 avx512f avx512vl avx512_vnni amx_int8", Instructions.AVX512_VNNI),
        ("x86_64", "avx2 avx_vnni", Instructions.AVX_VNNI),
        ("x86_64", "avx2 avx512f avx512_vnni", Instructions.AVX2),
        ("x86_64", "sse4_2 avx", Instructions.ANY),
        ("x86_64", "fp asimd asimddp", Instructions.ANY),
    ],
)
def test_the_best_instructions_that_kernels_use_are_named(
    machine: str, flags: str, expected: Instructions
) -> None:
    assert instructions_in(set(flags.split()), machine) is expected


def test_this_processor_is_known_by_its_own_flags() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    assert cpu_instructions() is instructions_in(flags, platform.machine())


def test_a_processor_without_amx_is_not_permitted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cpu_flags", lambda: {"avx2", "amx_tile"})
    assert not is_amx_permitted()


@pytest.mark.parametrize(
    ("precision", "is_permitted", "expected"),
    [
        ("int8", True, "AVX-512 VNNI and AMX"),
        ("int4", True, "AVX-512 VNNI and AMX"),
        ("fp32", True, "AVX-512 VNNI"),
        ("int8", False, "AVX-512 VNNI"),
    ],
)
def test_amx_is_named_where_it_is_permitted_and_weights_are_bytes_or_less(
    monkeypatch: pytest.MonkeyPatch, precision: str, is_permitted: bool, expected: str
) -> None:
    monkeypatch.setattr(processor, "cpu_instructions", lambda: Instructions.AVX512_VNNI)
    monkeypatch.setattr(processor, "cpu_flags", set)
    monkeypatch.setattr(processor, "is_amx_permitted", lambda: is_permitted)
    assert instructions_for(precision) == expected


@pytest.mark.parametrize(("precision", "expected"), [("int4", " and i8mm"), ("fp32", "")])
def test_i8mm_is_named_where_weights_are_bytes_or_less(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: str
) -> None:
    monkeypatch.setattr(processor, "cpu_instructions", lambda: Instructions.DOT_PRODUCTS)
    monkeypatch.setattr(processor, "cpu_flags", lambda: {"asimddp", "i8mm"})
    assert instructions_for(precision) == "NEON with dot products" + expected
