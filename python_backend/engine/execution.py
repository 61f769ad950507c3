"""What the engine asks of whoever computes its steps."""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from python_backend.engine.scheduling.plan import BlockCopy, Chunk
    from python_backend.wire.errors import InflightError


@dataclass(slots=True)
class ChunkResult:
    """What one chunk gave; `token_id` is set where the chunk yields a token and its scores were numbers.

    `ends_guide` says that the sequence's guide allows nothing more, so that the answer ends here; `error` why
    this sequence alone cannot go on. Logits are
    rows of fp32: `context_logits` one for each prompt token of the chunk, `generation_logits` the one the
    token was chosen from.
    """

    token_id: int | None = None
    ends_guide: bool = False
    log_prob: float | None = None
    context_logits: bytes | None = None
    generation_logits: bytes | None = None
    error: InflightError | None = None


class Executor(Protocol):
    """What runs the model: the keys and values of computed tokens are its own business."""

    def execute(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> list[ChunkResult]:
        """Copies blocks, then computes the chunks in one forward pass; one result for each, in their order.

        Computing the same chunks again gives the same results: whoever raised may be asked for fewer.
        """
