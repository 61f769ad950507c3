"""What the engine asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from python_backend.engine.attention import StepAttention
    from python_backend.engine.kv_cache import KvShape


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Token ids run from 0 to `vocabulary` - 1, positions from 0 to `max_positions` - 1."""

    vocabulary: int
    max_positions: int
    query_heads: int
    kv: KvShape


class Model(Protocol):
    @property
    def limits(self) -> ModelLimits: ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        wanted_rows: torch.Tensor,
    ) -> torch.Tensor:
        """One pass over a flat batch of tokens from many sequences; the logits of the wanted rows alone.

        `attention` is called once for each layer with that layer's queries, keys and values; it knows which
        row belongs to which sequence, and the model does not.
        """
