"""What one step is to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import StepShape
from python_backend.engine.kv.table import BlockCopy

if TYPE_CHECKING:
    from python_backend.engine.sequence import Sequence


@dataclass(slots=True, eq=False)  # not frozen: hundreds are made in a step, which would take thrice as long
class Chunk:
    """The next `count` tokens of one sequence, from position `start` on: a slice of a prompt, or one token.

    (In the router a chunk is something else, one streamed piece of an answer.)

    `drafts` are tokens that were guessed behind a single one: rows of the chunk too, each of which tells what
    comes behind it, if it is right. With `yields_token` nothing of the sequence is left to compute after it,
    so the step finds its next token. A token that is still to come when the chunk is planned is the only one
    of its chunk. `preemptions` is the sequence's count at that time: where there were more since, the chunk's
    blocks are the sequence's no more.
    """

    sequence: Sequence
    start: int
    count: int
    yields_token: bool = False
    preemptions: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def token_ids(self) -> list[int]:
        if self.drafts:
            return [self.sequence.tokens[self.start], *self.drafts]
        return self.sequence.tokens[self.start : self.end].tolist()

    @property
    def awaits_token(self) -> bool:
        """Whether its token is still to come, from a step in flight."""
        return self.start >= len(self.sequence.tokens)

    @property
    def is_context(self) -> bool:
        """Part of a prompt, or of tokens to compute once more after a preemption."""
        return self.count - len(self.drafts) > 1 or self.start < self.sequence.prompt_tokens


@dataclass(slots=True)
class StepPlan:
    """Every copy is for the block that one of the chunks begins in.

    It was planned at `begun_ns`; where it `follows` another, nothing was awaited between the two.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    paused: list[Sequence] = field(default_factory=list)
    tokens: int = 0
    long_context_tokens: int = 0  # what tokens of prompts behind long contexts count beside themselves
    drafts: int = 0  # of the tokens
    begun_ns: int = 0
    follows: bool = False

    @property
    def shape(self) -> StepShape:
        context = [chunk.count for chunk in self.chunks if chunk.is_context]
        kv_tokens = sum([chunk.start for chunk in self.chunks])
        return StepShape(sum(context) + self.drafts, len(self.chunks) - len(context), kv_tokens)

    def add(self, sequence: Sequence, count: int) -> None:
        """Hands out the sequence's next tokens."""
        start = sequence.scheduled_tokens
        if start + count == sequence.expected_tokens:
            self.add_last(sequence, count)
            return
        self.chunks.append(Chunk(sequence, start, count, False, sequence.preemptions))
        self.tokens += count
        sequence.scheduled_tokens = start + count

    def add_last(self, sequence: Sequence, count: int) -> None:
        """The same where nothing is left over."""
        start = sequence.scheduled_tokens
        self.chunks.append(Chunk(sequence, start, count, True, sequence.preemptions))
        self.tokens += count
        sequence.scheduled_tokens = start + count
        sequence.coming_tokens += 1

    def add_drafts(self, chunk: Chunk, drafts: tuple[int, ...]) -> None:
        """Behind its single token; what of them is right is known when the step is over."""
        chunk.drafts = drafts
        chunk.count += len(drafts)
        self.tokens += len(drafts)
        self.drafts += len(drafts)

    def forget_copies(self, sequence: Sequence) -> None:
        """Takes back copies into blocks that the sequence is about to lose."""
        if self.copies:
            lost = set(sequence.table.held)
            self.copies = [copy for copy in self.copies if copy.target not in lost]

    def drop(self, sequence: Sequence) -> None:
        """Takes back what was planned for a sequence that leaves the batch, if anything was."""
        for chunk in self.chunks:
            if chunk.sequence is sequence:
                self.chunks.remove(chunk)
                self.tokens -= chunk.count
                sequence.coming_tokens -= chunk.yields_token
                sequence.scheduled_tokens = chunk.start
                return
