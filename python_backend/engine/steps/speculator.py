"""Guesses tokens for sequences that decode, without a second model, and learns how often they come true.

A guess is verified by the step that computes it: each token is chosen from its own row exactly as if the step
had been for it alone, and what was guessed beyond the first difference is dropped. So answers are the same,
greedy or drawn, whatever is guessed.

Where steps overlap, guesses are made for those sequences alone whose next tokens can be chosen all at once,
and only where they pay for a step that does not overlap with the one before: its tokens have to be known.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from python_backend.engine.scheduling.speculation import (
    ApartCosts,
    Guess,
    GuessCosts,
    RowCosts,
    Step,
    worthwhile,
)
from python_backend.engine.steps.recall import REMEMBERED, EarlierAnswers, Trail

if TYPE_CHECKING:
    from python_backend.costs.step_cost import LearnedStepCost
    from python_backend.engine.kv.blocks import BlockPool
    from python_backend.engine.scheduling.plan import Chunk, StepPlan
    from python_backend.engine.sequence import Sequence

_MOST_TOKENS = 16
# By how much of the past a guess agrees with: up to so many tokens, and how often it is right at first sight.
_CLASSES = ((3, 0.3), (7, 0.5), (15, 0.7), (1 << 30, 0.85))
# How many guesses of a sequence's own weigh as much as what others have shown.
_WEIGHT = 4.0
_FORGETS = 0.97
# One that was given up is tried again with one token every so many steps.
_PROBE_STEPS = 64
# Where steps overlap: beside more sequences, to look for guesses takes longer than they would save.
_MOST_SEQUENCES = 32


class _Record:
    """Of one sequence."""

    __slots__ = ("accepted", "kind", "proposed", "steps", "trail")

    def __init__(self) -> None:
        self.trail = Trail()
        self.proposed = 0.0
        self.accepted = 0.0
        self.steps = 0
        self.kind = 0


class Speculator:
    """`most_choices` as an executor's; None where steps do not overlap."""

    def __init__(self, pool: BlockPool, most_choices: int | None = None) -> None:
        self._pool = pool
        self._most_choices = most_choices
        self._costs: GuessCosts = RowCosts() if most_choices is None else ApartCosts()
        self._planned_ms = 0.0  # of the latest step, without guesses
        self._records: dict[Sequence, _Record] = {}
        self._earlier = EarlierAnswers()
        self._chances = [chance for _, chance in _CLASSES]
        self.drafted = 0  # over the engine's life, as are the others
        self.accepted = 0

    def extend(self, plan: StepPlan, learned: LearnedStepCost | None, max_step_tokens: int) -> None:
        """Adds guesses to the plan's single tokens, as many as pay."""
        chunks = [chunk for chunk in self._guessable(plan, learned) if not chunk.awaits_token]
        if not chunks:
            return
        found = [self._guess(chunk.sequence) for chunk in chunks]
        guesses = [Guess(len(tokens), chance) for tokens, chance in found]
        step = self._step(plan, learned)
        self._planned_ms = step.takes_ms
        most_rows = self._most_rows(plan, max_step_tokens)
        chosen = worthwhile(guesses, step, most_rows)
        for chunk, (tokens, _), count in zip(chunks, found, chosen, strict=True):
            record = self._records[chunk.sequence]
            record.steps += 1
            if count == 0 and tokens and record.steps % _PROBE_STEPS == 0 and plan.drafts < most_rows:
                count = 1
            if count and (room := self._room(chunk.sequence, count)):
                plan.add_drafts(chunk, tuple(tokens[:room]))

    def promises(self, plan: StepPlan, learned: LearnedStepCost | None, max_step_tokens: int) -> bool:
        """Whether guesses are likely to pay when the tokens are known that this step in flight will give.

        The first of what is guessed now is the token that is to come.
        """
        chunks = self._guessable(plan, learned)
        found = [self._guess(chunk.sequence) for chunk in chunks]
        guesses = [Guess(len(tokens) - 1, chance) for tokens, chance in found if len(tokens) > 1]
        if not guesses:
            return False
        return any(worthwhile(guesses, self._step(plan, learned), self._most_rows(plan, max_step_tokens)))

    def took(self, plan: StepPlan, took_ms: float) -> None:
        """The step is over, so long after the one before it."""
        if plan.drafts:
            rows, planned_ms = plan.tokens - plan.drafts, self._planned_ms
            self._costs.observe(rows, planned_ms, plan.drafts, took_ms - planned_ms)

    def _guessable(self, plan: StepPlan, learned: LearnedStepCost | None) -> list[Chunk]:
        if learned is None or learned.is_frozen:
            return []
        if self._most_choices is None:
            return [chunk for chunk in plan.chunks if _may_guess(chunk)]
        if len(plan.chunks) > _MOST_SEQUENCES:
            return []
        return [
            chunk for chunk in plan.chunks if _may_guess(chunk) and not chunk.sequence.is_chosen_by_its_past
        ]

    def _step(self, plan: StepPlan, learned: LearnedStepCost | None) -> Step:
        assert learned is not None
        takes_ms = learned.cost.step_ms(plan.shape)
        extra_ms = partial(self._costs.extra_ms, plan.tokens, takes_ms)
        return Step(len(plan.chunks), takes_ms, extra_ms)

    def _most_rows(self, plan: StepPlan, max_step_tokens: int) -> int:
        most = max_step_tokens - plan.tokens
        return most if self._most_choices is None else min(most, self._most_choices - len(plan.chunks))

    def observe(self, chunk: Chunk, accepted: int) -> None:
        """So many of a chunk's guesses were right; of the others the first alone says something."""
        record = self._records[chunk.sequence]
        tried = min(accepted + 1, len(chunk.drafts))
        self.drafted += len(chunk.drafts)
        self.accepted += accepted
        record.proposed = record.proposed * _FORGETS + tried
        record.accepted = record.accepted * _FORGETS + accepted
        for _ in range(accepted):
            self._chances[record.kind] += 0.02 * (1 - self._chances[record.kind])
        if tried > accepted:
            self._chances[record.kind] -= 0.02 * self._chances[record.kind]

    def forget(self, sequence: Sequence) -> None:
        """It has ended; its tenant's later answers may be like it."""
        if self._records.pop(sequence, None) is not None and not sequence.is_suspect:
            self._earlier.remember(_whose(sequence), sequence.generated_ids)

    def _guess(self, sequence: Sequence) -> tuple[list[int], float]:
        record = self._records.get(sequence)
        if record is None:
            record = self._records[sequence] = _Record()
        record.trail.follow(sequence.tokens, max(0, sequence.prompt_tokens - REMEMBERED))
        last = sequence.tokens[-32:].tolist()
        tokens, length = record.trail.after(last, _MOST_TOKENS)
        if length < 8:
            others, other_length = self._earlier.after(_whose(sequence), last, _MOST_TOKENS)
            if other_length > length:
                tokens, length = others, other_length
        if not tokens:
            return [], 0.0
        record.kind = next(kind for kind, (most, _) in enumerate(_CLASSES) if length <= most)
        chance = (_WEIGHT * self._chances[record.kind] + record.accepted) / (_WEIGHT + record.proposed)
        return tokens, min(chance, 0.98)

    def _room(self, sequence: Sequence, count: int) -> int:
        """How many of so many fit into what the sequence may have, and into blocks that nobody lacks."""
        count = min(count, sequence.most_tokens - len(sequence.tokens) - 1)
        if count > 0 and not self._pool.grow(sequence.table, len(sequence.tokens) + count):
            count = sequence.table.room * self._pool.tokens_per_block - len(sequence.tokens)
        return max(count, 0)


def _may_guess(chunk: Chunk) -> bool:
    """Not what a guide rules: it wants to see each token before it says what may follow."""
    sequence = chunk.sequence
    return (
        chunk.yields_token and chunk.count == 1 and sequence.generated_tokens > 0 and sequence.guide is None
    )


def _whose(sequence: Sequence) -> object:
    request = sequence.request
    return request.tenant, request.cache_salt, request.adapter
