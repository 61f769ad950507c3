"""The log probs of chosen tokens and of the likeliest beside them, for the rows that ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from python_backend.engine.cuda.pinned_memory import copy_to_host

if TYPE_CHECKING:
    from collections.abc import Sequence as Row


@dataclass(frozen=True, slots=True)
class TopLogProbs:
    """For each of `rows` the chosen token first, then the likeliest; on the device until `to_host`."""

    rows: Row[int]
    token_ids: torch.Tensor
    log_probs: torch.Tensor

    def to_host(self) -> TopLogProbs:
        """The same in memory of the host that is filled when the step is over."""
        return TopLogProbs(self.rows, copy_to_host(self.token_ids), copy_to_host(self.log_probs))

    def by_row(self) -> dict[int, list[tuple[int, float]]]:
        found = zip(self.rows, self.token_ids.tolist(), self.log_probs.tolist(), strict=True)
        return {row: list(zip(ids, log_probs, strict=True)) for row, ids, log_probs in found}


def top_log_probs(scores: torch.Tensor, tokens: torch.Tensor, rows: Row[int], count: int) -> TopLogProbs:
    """`scores` (fp32) and `tokens` have an entry for each of `rows`; a code among these means nothing."""
    likeliest = scores.topk(min(count, scores.shape[1]), dim=1).indices
    token_ids = torch.cat([tokens.long().clamp_(min=0).unsqueeze(1), likeliest], dim=1)
    log_probs = scores.gather(1, token_ids) - scores.logsumexp(1, keepdim=True)
    return TopLogProbs(rows, token_ids, log_probs)
