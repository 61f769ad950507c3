"""What the model is told about one step: which rows there are, and whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from python_backend.engine.cuda.adapters import RowAdapters


@dataclass(frozen=True, slots=True)
class PrefillChunks:
    """The chunks of several rows; all on the device.

    Chunk c is the rows from `first_rows[c]` up to `first_rows[c + 1]`; `starts[c]` is the position of its
    first one. `tiles` is the attention kernel's work list.
    """

    slots: torch.Tensor
    first_rows: torch.Tensor
    starts: torch.Tensor
    tiles: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step on the device: those of chunks, and those of `work`, which are one token each.

    `wanted_rows` are those whose logits are wanted; None: all of them. `adapters` where some row has one.
    """

    token_ids: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    work: torch.Tensor | None = None
    chunks: PrefillChunks | None = None
    wanted_rows: torch.Tensor | None = None
    adapters: RowAdapters | None = None
