"""What one step is to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `count` tokens of one sequence, from position `start` on."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def token_ids(self) -> list[int]:
        return self.sequence.tokens[self.start : self.end]

    @property
    def is_context(self) -> bool:
        """Part of a prompt, or of tokens to compute once more after a preemption."""
        return self.count > 1 or self.start < self.sequence.prompt_tokens

    @property
    def yields_token(self) -> bool:
        """Nothing of the sequence is left to compute after this chunk, so the step finds its next token."""
        return self.end == len(self.sequence.tokens)


@dataclass(slots=True)
class StepPlan:
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
