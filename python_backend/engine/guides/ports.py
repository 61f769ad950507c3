"""The interface of guided decoding: what keeps an answer within a language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from python_backend.engine.request import Guide


class AnswerGuide(Protocol):
    """One answer's position in its guide's language."""

    @property
    def is_ready(self) -> bool:
        """Whether `mask` has its answer, or its refusal, without waiting."""

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is a word of the language; waits as `mask` does."""

    def wait(self, limit_s: float) -> None:
        """Returns when the guide is ready, or after `limit_s`."""

    def advance(self, token_id: int) -> None:
        """Takes the next token of the answer; returns at once. What it leads to is found by `follow`."""

    def bits(self, end_id: int | None) -> NDArray[np.uint32]:
        """The tokens that may come next, as bits of 32-bit words, the lowest first; not to be changed.

        Waits for them, and raises InflightError where there are none.
        """

    def fork(self) -> AnswerGuide:
        """Another one at the same position, for another answer."""


class PreparedGuide(Protocol):
    """A guide that is being compiled elsewhere (a Future)."""

    def done(self) -> bool: ...

    def result(self) -> AnswerGuide:
        """The guide at the beginning of an answer, or raises what is wrong with it."""

    def cancel(self) -> bool: ...


class GuideCompiler(Protocol):
    def compile(self, guide: Guide, owner: str, tenant: str = "") -> PreparedGuide:
        """Returns at once. What is compiled for one owner is kept for it alone; tenants take turns."""

    def follow(self) -> None:
        """What guides were told is followed from now on, all together; returns at once."""
