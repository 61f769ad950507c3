"""Root-mean-square normalization."""

from __future__ import annotations

import torch


class RmsNorm:
    """x / √(mean(x²) + ε) · w over the last dimension, of `width` entries.

    Written as √n · x / hypot(‖x‖, √(nε)) · w, which is four operations where torch's own takes nine: for a
    decoding batch it is their number that costs.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self.width = width = weight.shape[-1]
        self._weight = weight * width**0.5
        self._floor = torch.tensor((width * epsilon) ** 0.5)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return (rows / torch.hypot(length, self._floor)).mul_(self._weight)
