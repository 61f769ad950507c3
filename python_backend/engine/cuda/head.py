"""The product of rows with the vocabulary, which gives logits in fp32."""

from __future__ import annotations

import torch

from python_backend.engine.cuda.kernels.matvec import matvec
from python_backend.engine.cuda.kernels.quantization import SMALLEST_MAX
from python_backend.engine.cuda.kernels.skinny_product import skinny_product, suited_tiling

_INT8_MAX = 127
# Entries of the vocabulary that are quantised at a time: in fp32 all of them would take gigabytes.
_ENTRIES_AT_ONCE = 8192


class Head:
    def __init__(self, matrix: torch.Tensor) -> None:
        self._matrix = matrix

    def write_logits(self, rows: torch.Tensor, logits: torch.Tensor) -> None:
        if len(rows) == 1 and rows.is_cuda:
            matvec(rows[0], self._matrix, logits[0])
        else:
            write_product(rows, self._matrix, logits)


class ByteHead(Head):
    """Has a copy in int8 for few rows, where reading the matrix is all that counts.

    With a scale for each entry it costs a fiftieth of the perplexity that fp8 would.
    """

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__(matrix)
        self.levels, self.scales = quantize_to_int8(matrix)

    def write_logits(self, rows: torch.Tensor, logits: torch.Tensor) -> None:
        if len(rows) == 1:
            matvec(rows[0], self.levels, logits[0], scales=self.scales)
        elif (tiling := suited_tiling(rows, self.levels, may_cut=False)) is not None:
            skinny_product(rows, self.levels, tiling, scales=self.scales, out=logits)
        else:
            super().write_logits(rows, logits)


def quantize_to_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix in int8, and one scale (fp32) for each of its rows."""
    levels = torch.empty(matrix.shape, dtype=torch.int8, device=matrix.device)
    scales = matrix.abs().amax(dim=1).float().clamp_(min=SMALLEST_MAX) / _INT8_MAX
    for first in range(0, len(matrix), _ENTRIES_AT_ONCE):
        part = slice(first, first + _ENTRIES_AT_ONCE)
        levels[part] = (matrix[part].float() / scales[part, None]).round_()
    return levels, scales


def write_product(rows: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor) -> None:
    """rows · matrixᵀ into fp32, without rounding what was summed up in fp32 anyway."""
    if rows.dtype == torch.float32:
        torch.mm(rows, matrix.t(), out=out)
    elif rows.is_cuda:
        torch.mm(rows, matrix.t(), out_dtype=torch.float32, out=out)
    else:
        out.copy_(rows @ matrix.t())
