"""Weights of a model's shape made of random numbers on the device: for load tests, where speed is all."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import DecoderWeights, LayerWeights, Weights


class RandomPlace:
    """Vectors as they are, matrices at random, the same ones at every start."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._dice = torch.Generator(device).manual_seed(0)

    def __call__(self, array: Weights) -> torch.Tensor:
        if array.ndim == 1:
            return torch.from_numpy(array).to(self._device, self._dtype)
        matrix = torch.empty(array.shape, dtype=self._dtype, device=self._device)
        return matrix.normal_(0.0, array.shape[-1] ** -0.5, generator=self._dice)


class RepeatedLayers:
    """A `DecoderWeights` whose layers are all built like the first, which is asked for its shapes once."""

    def __init__(self, weights: DecoderWeights) -> None:
        self.shape = weights.shape
        self.quantized_bytes = None
        self._weights = weights
        self._layer = cache(weights.layer)

    def embeddings(self) -> Weights:
        return self._weights.embeddings()

    def layer(self, index: int) -> LayerWeights:
        # Where some layers have experts and others not, each is asked for its own.
        return self._layer(0 if self.shape.experts is None else index)

    def final_norm(self) -> Weights:
        return self._weights.final_norm()

    def head(self) -> Weights | None:
        return self._weights.head()
