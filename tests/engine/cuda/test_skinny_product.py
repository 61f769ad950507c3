"""Few rows against matrices whole and in bytes, in one part and in several."""

from __future__ import annotations

import pytest
import torch

from python_backend.engine.cuda.fp8 import quantize_weight
from python_backend.engine.cuda.kernels.quantization import quantize_rows
from python_backend.engine.cuda.kernels.skinny_product import SkinnyTiling, skinny_product, suited_tiling
from tests.engine.cuda.cases import on_gpu

OUTPUTS, LENGTH = 64, 256
FP8 = torch.float8_e4m3fn


def small_tiling(parts: int) -> SkinnyTiling:
    return SkinnyTiling(16, 32, 32, parts, 4, 2)


def random_rows(count: int, device: str) -> torch.Tensor:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return torch.randn(count, LENGTH).to(device, dtype)


def random_matrix(kind: str, device: str) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The weights, their scales, and the matrix that is meant."""
    whole = torch.randn(OUTPUTS, LENGTH) / LENGTH**0.5
    if kind == "whole":
        matrix = whole.to(device, torch.float32 if device == "cpu" else torch.bfloat16)
        return matrix, None, matrix.float()
    if kind == "int8":
        scales = whole.abs().amax(1) / 127
        weight = (whole / scales[:, None]).round().to(torch.int8)
    else:
        weight, scales = quantize_weight(whole)
    return weight.to(device), scales.to(device), (weight.float() * scales[:, None]).to(device)


@pytest.mark.parametrize("kind", ["whole", "fp8", "int8"])
@pytest.mark.parametrize(("count", "parts"), [(3, 2), (19, 1), *on_gpu((2, 4), (16, 1), (64, 2))])
def test_few_rows_are_multiplied_whole_or_in_parts(kind: str, count: int, parts: int, device: str) -> None:
    torch.manual_seed(0)
    weight, scales, matrix = random_matrix(kind, device)
    rows = random_rows(count, device)
    found = skinny_product(rows, weight, small_tiling(parts), scales=scales)
    expected = rows.float() @ matrix.t()
    if parts == 1:
        assert found.dtype == rows.dtype
        assert torch.allclose(found.float(), expected, rtol=2**-7, atol=1e-4)
    else:
        assert found.shape == (parts, count, OUTPUTS)
        assert torch.allclose(found.sum(0), expected, atol=1e-4)


def test_a_whole_product_of_few_rows_has_its_bias(device: str) -> None:
    torch.manual_seed(0)
    weight, scales, matrix = random_matrix("fp8", device)
    rows = random_rows(5, device)
    bias = torch.randn(OUTPUTS).to(device, rows.dtype)
    found = skinny_product(rows, weight, small_tiling(1), scales=scales, bias=bias)
    assert torch.allclose(found.float(), rows.float() @ matrix.t() + bias.float(), rtol=2**-7, atol=1e-4)


def test_a_product_of_few_rows_is_written_where_it_is_wanted_without_rounding(device: str) -> None:
    torch.manual_seed(0)
    weight, scales, matrix = random_matrix("int8", device)
    rows, out = random_rows(5, device), torch.empty(5, OUTPUTS, device=device)
    assert skinny_product(rows, weight, small_tiling(1), scales=scales, out=out) is out
    assert torch.allclose(out, rows.float() @ matrix.t(), atol=1e-4)


@pytest.mark.gpu
def test_each_fp8_number_is_exact_in_a_product(device: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = torch.where((codes & 127) == 127, 0, codes)
    weight = codes.repeat(OUTPUTS, 1).to(device).view(torch.float8_e4m3fn)
    for rows in torch.eye(LENGTH, device=device, dtype=torch.bfloat16).view(4, 64, LENGTH):
        found = skinny_product(rows, weight, small_tiling(1), scales=torch.ones(OUTPUTS, device=device))
        assert torch.equal(found.float(), rows.float() @ weight.float().t())


def test_rows_in_fp8_are_multiplied_by_their_own_scales(device: str) -> None:
    torch.manual_seed(0)
    weight, scales, matrix = random_matrix("fp8", device)
    rows = random_rows(20, device)
    quantized, row_scales = quantize_rows(rows)
    tiling = SkinnyTiling(32, 64, 64, 1, 4, 2)
    found = skinny_product(quantized, weight, tiling, scales=scales, row_scales=row_scales, dtype=rows.dtype)
    expected = quantized.float() * row_scales @ matrix.t()
    assert found.dtype == rows.dtype
    assert torch.allclose(found.float(), expected, rtol=2**-6, atol=2e-2)


def _tiling(
    count: int, shape: tuple[int, int], weight: torch.dtype, row: torch.dtype, may_cut: bool
) -> SkinnyTiling | None:
    rows, matrix = (
        torch.empty(count, 1, dtype=row, device="meta"),
        torch.empty(shape, dtype=weight, device="meta"),
    )
    return suited_tiling(rows, matrix, may_cut)


@pytest.mark.parametrize(
    ("rows", "shape", "weight", "row", "may_cut"),
    [
        (1, (4096, 4096), FP8, torch.bfloat16, True),
        (17, (4096, 4096), FP8, torch.bfloat16, True),
        (129, (4096, 4096), FP8, FP8, True),
        (65, (28672, 4096), FP8, FP8, False),
        (8, (4100, 4096), FP8, torch.bfloat16, False),
        (8, (4096, 4100), FP8, FP8, False),
        (8, (4096, 4096), torch.bfloat16, torch.bfloat16, False),
        (65, (128256, 4096), torch.int8, torch.bfloat16, False),
    ],
)
def test_rows_and_matrices_that_another_product_multiplies(
    rows: int, shape: tuple[int, int], weight: torch.dtype, row: torch.dtype, may_cut: bool
) -> None:
    assert _tiling(rows, shape, weight, row, may_cut) is None


@pytest.mark.parametrize("rows", [2, 16, 33, 64])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)])
@pytest.mark.parametrize("may_cut", [False, True])
def test_each_matrix_of_an_8b_llama_has_a_tiling_in_bytes(
    rows: int, shape: tuple[int, int], may_cut: bool
) -> None:
    weight, row = (torch.int8, torch.bfloat16) if shape[0] > 100_000 else (FP8, torch.bfloat16)
    if weight == FP8 and rows > 16:
        row = FP8
    tiling = _tiling(rows, shape, weight, row, may_cut)
    assert tiling is not None
    assert tiling.rows >= rows
    assert tiling.parts == 1 or may_cut
