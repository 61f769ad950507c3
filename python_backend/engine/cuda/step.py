"""What the model is told about one step: which rows there are, and whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PrefillChunks:
    """The chunks of several rows, one after the other behind the decoding rows; all on the device.

    `first_rows[c]` counts from the first row of the first chunk, and has one entry more than there are
    chunks; `starts[c]` is the position of chunk c's first row. `tiles` is the attention kernel's work list.
    """

    slots: torch.Tensor
    first_rows: torch.Tensor
    starts: torch.Tensor
    tiles: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step on the device: first `decode_rows` of one token each, then those of the chunks.

    `wanted_rows` are those whose logits are wanted; None: all of them.
    """

    token_ids: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    decode_rows: int
    chunks: PrefillChunks | None = None
    wanted_rows: torch.Tensor | None = None
