"""Products of rows with fixed weights, in the precisions that the GPU knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from python_backend.engine.cuda.kernels.matvec import matvec
from python_backend.engine.cuda.kernels.skinny_product import skinny_product, suited_tiling

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from python_backend.engine.cuda.kernels.matvec import Around

# So many rows keep a product busy with arithmetic, and what it adds them to is read in passing.
_ROWS_TO_ADD_WITHIN = 512


class Linear:
    """y = x Wᵀ + b, in the weights' own precision; `scales` where the weight's rows have some."""

    scales: torch.Tensor | None = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.outputs, self.inputs = weight.shape
        self._transposed = weight.t()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(rows, self._transposed)
        return torch.addmm(self.bias, rows, self._transposed)

    def onto(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
        """hidden += y, in place; or returns y, whole or in parts, where whoever adds it later is faster."""
        if self.bias is None and rows.is_cuda:
            if (tiling := suited_tiling(rows, self.weight, may_cut=True)) is not None:
                return skinny_product(rows, self.weight, tiling)
            if len(rows) >= _ROWS_TO_ADD_WITHIN:
                torch.addmm(hidden, rows, self._transposed, out=hidden)
                return None
        return self(rows)

    def times_row(self, row: torch.Tensor, out: torch.Tensor, **around: Unpack[Around]) -> None:
        """One row alone, together with what comes before and after the product."""
        matvec(row, self.weight, out, scales=self.scales, bias=self.bias, **around)
