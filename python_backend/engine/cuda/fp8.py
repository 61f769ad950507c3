"""Weights in fp8 (e4m3): half the bytes of bf16 to read, and twice the products a second."""

from __future__ import annotations

import torch

from python_backend.engine.cuda.kernels.quantization import FP8_MAX, SMALLEST_MAX, quantize_rows
from python_backend.engine.cuda.kernels.skinny_product import skinny_product, suited_tiling
from python_backend.engine.cuda.linear import Linear

# What the GPU's fp8 products ask of both sides of a matrix.
_SIDE_MULTIPLE = 16


class Fp8Linear(Linear):
    """Each row of the matrix is `weight` (fp8) times its entry of `scales` (fp32).

    Many rows are quantised too, each by its own scale; few are not, because reading the weights is then all
    that counts.
    """

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self.scales: torch.Tensor = scales
        self._scales_of_columns = scales.view(1, -1)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._multiply(rows, may_cut=False)

    def onto(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Always y, in parts where rows are few: whoever adds it reads it anyway."""
        return self._multiply(rows, may_cut=self.bias is None)

    def _multiply(self, rows: torch.Tensor, may_cut: bool) -> torch.Tensor:
        if not rows.is_cuda:
            return self._multiply_dequantized(rows)
        if len(rows) == 1:
            out = rows.new_empty(1, len(self.weight))
            self.times_row(rows[0], out[0])
            return out
        weight, scales, bias = self.weight, self.scales, self.bias
        if (tiling := suited_tiling(rows, weight, may_cut)) is not None:
            return skinny_product(rows, weight, tiling, scales=scales, bias=bias)
        quantized, row_scales = quantize_rows(rows)
        if (tiling := suited_tiling(quantized, weight, may_cut)) is not None:
            both = {"scales": scales, "row_scales": row_scales}
            return skinny_product(quantized, weight, tiling, **both, bias=bias, dtype=rows.dtype)
        product = torch._scaled_mm(
            quantized,
            self._transposed,
            scale_a=row_scales,
            scale_b=self._scales_of_columns,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        ).to(rows.dtype)
        return product if self.bias is None else product.add_(self.bias)

    def dequantized(self) -> torch.Tensor:
        return self.weight.float() * self.scales[:, None]

    def _multiply_dequantized(self, rows: torch.Tensor) -> torch.Tensor:
        """For machines without fp8 products; for tests, that is."""
        product = torch.mm(rows.float(), self.dequantized().t())
        return (product if self.bias is None else product + self.bias.float()).to(rows.dtype)


def quantize_weight(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix in fp8, and one scale (fp32) for each of its rows."""
    scales = matrix.abs().amax(dim=1).float().clamp_(min=SMALLEST_MAX) / FP8_MAX
    return (matrix.float() / scales[:, None]).to(torch.float8_e4m3fn), scales


def suits_fp8(shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether the GPU multiplies such a matrix in fp8."""
    is_able = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
    return is_able and not any(side % _SIDE_MULTIPLE for side in shape)


def make_fp8(matrix: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """A product in fp8, or in the matrix's own precision where the GPU has none of its size in fp8."""
    if not suits_fp8(tuple(matrix.shape), matrix.device):
        return Linear(matrix, bias)
    weight, scales = quantize_weight(matrix)
    return Fp8Linear(weight, scales, bias)
