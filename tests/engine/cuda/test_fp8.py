"""fp8 weights against the numbers that they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu, silu

from python_backend.engine.cuda.fp8 import Fp8Linear, make_fp8, quantize_weight
from python_backend.engine.cuda.kernels.matvec import MatvecTiling, matvec
from python_backend.engine.cuda.kernels.quantization import FP8_MAX, quantize_rows
from python_backend.engine.cuda.linear import Linear
from tests.engine.cuda.cases import on_gpu

# e4m3 has three bits behind the point; below its normal numbers the step is 2^-9 of the scale.
RELATIVE_STEP, SMALLEST_STEP = 2.0**-4, 2.0**-10


SMALL_BLOCKS = MatvecTiling(4, 32, 1)


def is_within_a_step(found: torch.Tensor, expected: torch.Tensor, scales: torch.Tensor) -> bool:
    allowed = (expected.abs() * RELATIVE_STEP).maximum(scales * SMALLEST_STEP) * 1.001
    return bool(((found - expected).abs() <= allowed).all())


@settings(deadline=None)
@given(seed=st.integers(0, 2**16), magnitude=st.floats(1e-4, 1e4), has_outlier=st.booleans())
def test_a_quantised_weight_is_off_by_half_a_step_at_most(
    seed: int, magnitude: float, has_outlier: bool
) -> None:
    dice = torch.Generator().manual_seed(seed)
    matrix = torch.randn(16, 32, generator=dice) * magnitude
    if has_outlier:
        matrix[3, 5] *= 1000
    weight, scales = quantize_weight(matrix)
    assert is_within_a_step(weight.float() * scales[:, None], matrix, scales[:, None])
    assert weight.float().abs().amax(dim=1).tolist() == [FP8_MAX] * 16


def test_a_weight_row_of_zeros_stays_zero() -> None:
    weight, scales = quantize_weight(torch.zeros(2, 16))
    assert (weight.float() * scales[:, None]).abs().max() == 0


@pytest.mark.parametrize(("rows", "width"), [(3, 100), *on_gpu((1, 16), (5, 48))])
def test_rows_are_quantised_each_by_its_own_maximum(rows: int, width: int, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, width) * torch.logspace(-3, 3, rows)[:, None]
    quantized, scales = (found.cpu() for found in quantize_rows(x.to(device)))
    assert quantized.dtype == torch.float8_e4m3fn
    assert torch.allclose(scales, x.abs().amax(dim=1, keepdim=True) / FP8_MAX)
    expected = (x / scales).to(torch.float8_e4m3fn).float()
    assert ((quantized.float() - expected).abs() <= x.abs() / scales / 8).all()


@pytest.mark.parametrize("exponent", [-9, 0, 5])
def test_numbers_that_fp8_represents_are_unchanged(exponent: int, device: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes[(codes & 127) < 127].view(torch.float8_e4m3fn).float()
    quantized, scales = quantize_rows((numbers * 2.0**exponent).view(2, -1).to(device))
    assert torch.equal(scales.cpu(), torch.full((2, 1), 2.0**exponent))
    assert torch.equal(quantized.float().flatten().cpu(), numbers)


def test_a_quantised_row_of_zeros_is_zero(device: str) -> None:
    quantized, scales = quantize_rows(torch.zeros(2, 16, device=device))
    assert quantized.float().abs().max() == 0
    assert scales.isfinite().all()


def matrix_in_fp8(outputs: int, width: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The matrix that is meant, its weights, and its scales."""
    weight, scales = quantize_weight(torch.randn(outputs, width) / width**0.5)
    return (weight.float() * scales[:, None]).to(device), weight.to(device), scales.to(device)


@pytest.mark.parametrize(
    ("has_norm", "has_bias"), [(False, True), (True, False), *on_gpu((False, False), (True, True))]
)
def test_one_row_is_normed_multiplied_and_added(has_norm: bool, has_bias: bool, device: str) -> None:
    torch.manual_seed(0)
    matrix, weight, scales = matrix_in_fp8(18, 80, device)
    x, residual = torch.randn(80).to(device), torch.randn(18).to(device)
    norm = (torch.rand(80).to(device), 1e-5) if has_norm else None
    bias = torch.randn(18).to(device) if has_bias else None
    normed = x if norm is None else x * torch.rsqrt(x.square().mean() + norm[1]) * norm[0]
    expected = matrix @ normed + residual + (0 if bias is None else bias)
    found = matvec(
        x, weight, residual, scales=scales, norm=norm, residual=residual, bias=bias, tiling=SMALL_BLOCKS
    )
    assert found is residual
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("is_gelu", "has_bias"), [(False, True), (True, False), *on_gpu((False, False), (True, True))]
)
def test_one_row_passes_gates_and_ups_at_once(is_gelu: bool, has_bias: bool, device: str) -> None:
    torch.manual_seed(0)
    matrix, weight, scales = matrix_in_fp8(20, 48, device)
    x = torch.randn(48).to(device)
    bias = torch.randn(20).to(device) if has_bias else None
    gate, up = (matrix @ x + (0 if bias is None else bias)).chunk(2)
    expected = (gelu(gate, approximate="tanh") if is_gelu else silu(gate)) * up
    found = matvec(
        x,
        weight,
        torch.empty_like(gate),
        scales=scales,
        bias=bias,
        gated=True,
        is_gelu=is_gelu,
        tiling=SMALL_BLOCKS,
    )
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_in_fp8_is_near_the_one_in_full_precision(rows: int, has_bias: bool, device: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    matrix, x = (torch.randn(side, 256).to(device, dtype) for side in (64, rows))
    bias = torch.randn(64).to(device, dtype) if has_bias else None
    linear = make_fp8(matrix, bias)
    assert isinstance(linear, Fp8Linear)
    expected = torch.nn.functional.linear(x, matrix, bias).float()
    found = linear(x)
    assert found.dtype == dtype
    assert (found.float() - expected).norm() / expected.norm() < 0.06


@pytest.mark.parametrize("rows", [1, 2, 33, 600])
def test_a_product_in_fp8_is_returned_and_not_added_in_place(rows: int, device: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    matrix, x = (torch.randn(side, 1024).to(device, dtype) for side in (64, rows))
    hidden = torch.randn(rows, 64).to(device, dtype)
    kept = hidden.clone()
    linear = make_fp8(matrix, None)
    delta = linear.onto(hidden, x)
    assert delta is not None
    added = delta.sum(0) if delta.dim() == 3 else delta
    # The tensor cores sum fp8 in fewer bits than fp32 has, and parts in another order: numbers are about 32.
    assert torch.allclose(added.to(dtype), linear(x), rtol=2**-7, atol=0.1)
    assert torch.equal(hidden, kept)


@pytest.mark.parametrize("has_norm", [False, True])
def test_one_row_gives_the_same_in_fp8_and_dequantised(has_norm: bool, device: str) -> None:
    torch.manual_seed(0)
    quantized = make_fp8(torch.randn(32, 48).to(device), torch.randn(32).to(device))
    assert isinstance(quantized, Fp8Linear)
    in_full = Linear(quantized.dequantized(), quantized.bias)
    x, residual = torch.randn(48).to(device), torch.randn(16).to(device)
    norm = (torch.rand(48).to(device), 1e-5) if has_norm else None
    found, expected = torch.empty(16).to(device), torch.empty(16).to(device)
    quantized.times_row(x, found, norm=norm, residual=residual, gated=True, is_gelu=True)
    in_full.times_row(x, expected, norm=norm, residual=residual, gated=True, is_gelu=True)
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(24, 32), (32, 24)])
def test_a_matrix_unsuited_to_fp8_products_keeps_its_precision(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape)
    linear = make_fp8(matrix, None)
    assert type(linear) is Linear
    assert linear.weight is matrix
