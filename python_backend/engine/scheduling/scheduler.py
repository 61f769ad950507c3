"""Iteration-level scheduling: which sequences get how many tokens in the next step.

There is no prefill phase and no decode phase. A sequence has tokens, some of them computed; a step hands
out the others under one token budget, first to the sequences that lack a single token (their clients wait
for the next one), then to those with more to catch up, then to new ones. A long prompt is thereby spread
over steps and nobody's next token waits for it.

A sequence joins with the blocks of every token it has, so only the growth of running sequences can find the
pool empty. Then the youngest gives its blocks back, waits at the head of the queue and is recomputed later.
The oldest is never preempted by another, so the work always ends. Running and waiting together stay in
order of arrival.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .plan import Chunk, StepPlan

if TYPE_CHECKING:
    from python_backend.engine.blocks import BlockPool
    from python_backend.engine.sequence import Sequence

    from .admission import AdmissionRule


class Scheduler:
    def __init__(
        self, pool: BlockPool, rule: AdmissionRule, max_batch_size: int, max_step_tokens: int
    ) -> None:
        if max_step_tokens < max_batch_size:
            raise ValueError(
                f"max_step_tokens is {max_step_tokens}; it must be at least max_batch_size "
                f"({max_batch_size}), or some running sequence would get no token"
            )
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._pool = pool
        self._rule = rule
        self._max_batch_size = max_batch_size
        self._max_step_tokens = max_step_tokens

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequences: list[Sequence]) -> None:
        """Takes sequences that ended out of the engine and their blocks back."""
        if not sequences:
            return
        gone = set(sequences)
        self.running = [sequence for sequence in self.running if sequence not in gone]
        self.waiting = deque(sequence for sequence in self.waiting if sequence not in gone)
        for sequence in sequences:
            self._pool.release(sequence.table)

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        budget_tokens = self._max_step_tokens - self._continue_decoding(plan)
        behind = [sequence for sequence in self.running if sequence.pending_tokens > 1]
        budget_tokens -= self._catch_up(plan, behind, budget_tokens)
        if not plan.preempted:
            self._catch_up(plan, self._admit(budget_tokens), budget_tokens)
        return plan

    def _continue_decoding(self, plan: StepPlan) -> int:
        """One token for each sequence that lacks just one, oldest first; returns the tokens handed out."""
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            if sequence.pending_tokens == 1:
                if not self._make_room(sequence, plan):
                    break
                plan.chunks.append(Chunk(sequence, sequence.computed_tokens, 1))
            position += 1
        return len(plan.chunks)

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Room for the sequence's last token; False when it was itself the youngest and had to give way."""
        while not self._pool.grow(sequence.table, len(sequence.tokens)):
            youngest = self.running.pop()
            self._pool.release(youngest.table)
            youngest.computed_tokens = 0
            self.waiting.appendleft(youngest)
            plan.preempted.append(youngest)
            if youngest is sequence:
                return False
        return True

    def _catch_up(self, plan: StepPlan, sequences: list[Sequence], budget_tokens: int) -> int:
        """What each still lacks, oldest first, while the budget lasts; returns the tokens handed out."""
        left = budget_tokens
        for sequence in sequences:
            count = min(sequence.pending_tokens, left)
            if count == 0:
                break
            plan.chunks.append(Chunk(sequence, sequence.computed_tokens, count))
            left -= count
        return budget_tokens - left

    def _admit(self, budget_tokens: int) -> list[Sequence]:
        """Moves waiting sequences into the batch, oldest first, while rule, batch size and blocks allow."""
        running_before = len(self.running)
        while (
            self.waiting
            and len(self.running) < self._max_batch_size
            and self._rule.is_open(running_before, budget_tokens)
            and self._take_blocks(self.waiting[0])
        ):
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            budget_tokens = max(0, budget_tokens - sequence.pending_tokens)
        return self.running[running_before:]

    def _take_blocks(self, sequence: Sequence) -> bool:
        tokens = self._rule.tokens_to_hold(sequence)
        left = self._pool.free_blocks - self._pool.blocks_for(tokens)
        return left >= self._rule.blocks_to_leave(len(self.running)) and self._pool.grow(
            sequence.table, tokens
        )
