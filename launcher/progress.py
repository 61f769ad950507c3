"""Progress of long work: a stage with a label, a size and how much of it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Stage(Protocol):
    """One piece of long work."""

    def advance_to(self, done: int) -> None:
        """Say how much of the stage's total is done by now."""


class Progress(Protocol):
    """Whoever shows stages."""

    def stage(self, label: str, total_bytes: int | None = None) -> AbstractContextManager[Stage]:
        """Open a stage; leaving the context ends it. Without a total only the passing time can be shown."""
