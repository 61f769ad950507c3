"""What one step is to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.engine.sequence import Sequence


@dataclass(slots=True)  # not frozen: hundreds are made in a step, and that takes three times as long
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


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A shared block is about to be written: its content moves into a block of the writer's own first."""

    source: int
    target: int


@dataclass(slots=True)
class StepPlan:
    """Every copy is for the block that one of the chunks begins in."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    tokens: int = 0

    def add(self, sequence: Sequence, count: int) -> None:
        self.chunks.append(Chunk(sequence, sequence.computed_tokens, count))
        self.tokens += count

    def drop(self, sequence: Sequence) -> None:
        """Takes back what was planned for a sequence, if anything was."""
        for chunk in self.chunks:
            if chunk.sequence is sequence:
                self.chunks.remove(chunk)
                self.tokens -= chunk.count
                return
