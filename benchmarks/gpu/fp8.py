"""Products of the 8B shape in fp8 against bf16 on this machine's GPU: python -m benchmarks.gpu.fp8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.grouped_products import median_us
from python_backend.engine.cuda.fp8 import Fp8Linear, quantize_weight
from python_backend.engine.cuda.kernels.matvec import MatvecTiling, matvec
from python_backend.engine.cuda.kernels.quantization import quantize_rows

# (outputs, inputs)
SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (32, 256, 4096)
# block_n, block_k, warps of the product with one row.
VECTOR_BLOCKS = ((4, 1024, 4), (2, 2048, 4), (4, 4096, 8), (8, 1024, 4))
# So many matrices are read in turn that none is found in the cache.
MATRICES = 6


@dataclass(frozen=True)
class Matrix:
    full: torch.Tensor
    fp8: Fp8Linear

    @classmethod
    def random(cls, shape: tuple[int, int]) -> Matrix:
        full = torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02
        return cls(full, Fp8Linear(*quantize_weight(full)))


Product = Callable[[Matrix], torch.Tensor]


def report(
    name: str, product: Product, reference: Product, reference_us: float, matrices: list[Matrix]
) -> None:
    try:
        us = median_us([partial(product, matrix) for matrix in matrices])
        expected = reference(matrices[0]).float()
        error = ((product(matrices[0]).float() - expected).norm() / expected.norm()).item()
        print(f"{name:44} {us:9.1f} us  {reference_us / us:5.2f} x bf16  error {error:.2%}", flush=True)
    except Exception as error:
        print(f"{name:44} failed: {repr(error)[:160]}", flush=True)


def in_full(x: torch.Tensor) -> Product:
    return lambda matrix: torch.mm(x, matrix.full.t())


def of_linear(x: torch.Tensor) -> Product:
    return lambda matrix: matrix.fp8(x)


def exactly_summed(x: torch.Tensor) -> Product:
    def product(matrix: Matrix) -> torch.Tensor:
        quantized, scales = quantize_rows(x)
        return torch._scaled_mm(
            quantized,
            matrix.fp8.weight.t(),
            scale_a=scales,
            scale_b=matrix.fp8.scales.view(1, -1),
            out_dtype=torch.bfloat16,
            use_fast_accum=False,
        )

    return product


def of_vector(x: torch.Tensor, block_n: int, block_k: int, warps: int) -> Product:
    def product(matrix: Matrix) -> torch.Tensor:
        out = x.new_empty(1, len(matrix.full))
        weight, scales = matrix.fp8.weight, matrix.fp8.scales
        matvec(x[0], weight, out[0], scales=scales, tiling=MatvecTiling(block_n, block_k, warps))
        return out

    return product


def compare(name: str, shape: tuple[int, int]) -> None:
    matrices = [Matrix.random(shape) for _ in range(MATRICES)]
    for rows in (1, *ROWS):
        x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
        reference = in_full(x)
        full_us = median_us([partial(reference, matrix) for matrix in matrices])
        label = f"{name} {shape[0]} x {shape[1]}, {rows} rows"
        print(f"{label + ', bf16':44} {full_us:9.1f} us", flush=True)
        report(f"{label}, exact sums", exactly_summed(x), reference, full_us, matrices)
        if rows > 1:
            report(f"{label}, fast sums", of_linear(x), reference, full_us, matrices)
            continue
        for blocks in VECTOR_BLOCKS:
            vector_name = f"{label}, vector {'/'.join(map(str, blocks))}"
            report(vector_name, of_vector(x, *blocks), reference, full_us, matrices)


def main() -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        for name, shape in SHAPES.items():
            compare(name, shape)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
