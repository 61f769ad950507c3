"""How long a step waits for guides that do not know yet which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.engine.sequence import Sequence

# Which tokens may come next is nearly always known so soon after the last one. A step waits that long for it,
# for a sequence that is passed over loses a whole step; nobody waits for a guide that takes longer.
_PATIENCE_NS = 5_000_000


def is_held_up(sequence: Sequence, now_ns: int) -> bool:
    """Whether a step would pass the sequence over."""
    return sequence.awaits_guide and now_ns - sequence.last_token_ns >= _PATIENCE_NS


def await_guides(sequences: Iterable[Sequence], now_ns: Callable[[], int]) -> None:
    """Waits for guides that were told their last token just now, no longer in all than for the latest."""
    for sequence in sequences:
        if sequence.guide is not None and not sequence.guide.is_ready:
            left_ns = sequence.last_token_ns + _PATIENCE_NS - now_ns()
            if left_ns > 0:
                sequence.guide.wait(left_ns / 1e9)
