"""What the engine asks of whoever keeps answers within a language."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from python_backend.engine.request import Guide
    from python_backend.engine.sequence import Sequence

# Which tokens may come next is nearly always known so soon after the last one. A step waits that long for it,
# for a sequence that is passed over loses a whole step; nobody waits for a guide that takes longer.
_PATIENCE_NS = 5_000_000


class AnswerGuide(Protocol):
    """One answer's place in its guide's language."""

    @property
    def is_ready(self) -> bool:
        """Whether `mask` has its answer, or its refusal, without waiting."""

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is a word of the language; waits as `mask` does."""

    def wait(self, limit_s: float) -> None:
        """Returns when the guide is ready, or after `limit_s`."""

    def advance(self, token_id: int) -> None:
        """Takes the next token of the answer; returns at once."""

    def mask(self, end_id: int | None) -> NDArray[np.bool_]:
        """The tokens that may come next; waits for them, and raises InflightError where there are none."""

    def fork(self) -> AnswerGuide:
        """Another one at the same place, for another answer."""


class PreparedGuide(Protocol):
    """A guide that is being compiled elsewhere (a Future)."""

    def done(self) -> bool: ...

    def result(self) -> AnswerGuide:
        """The guide at the beginning of an answer, or raises what is wrong with it."""

    def cancel(self) -> bool: ...


class GuideCompiler(Protocol):
    def compile(self, guide: Guide) -> PreparedGuide:
        """Returns at once."""


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
