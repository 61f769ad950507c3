"""Iteration-level scheduling: which sequences get how many tokens in the next step.

There is no prefill phase and no decode phase. A sequence has tokens, some of them computed; a step hands
out the others under one token budget, first to the sequences that lack a single token (their clients wait
for the next one), then to those with more to catch up, then to new ones, unless these are of a better tier.
A long prompt is thereby spread over steps and nobody's next token waits for it.

Running and waiting are each in order of rank: better tiers first, and within a tier by arrival. A sequence
joins with the blocks of every token it has, so only the growth of running sequences can find the pool
empty. Then the last in rank is preempted: it gives its blocks back, waits in its old order and is recomputed
later. A waiting sequence also takes the slot or the blocks of running ones of a worse tier, and of no others.
The first in rank is never preempted, so the work always ends.

Nothing is computed twice that can be had for waiting. A sequence joins with the blocks that hold its
beginning already. While one before it in rank is just computing its next block, it lets others pass: it
could not have computed that block any sooner itself. The sequences of one request wait in the same way until
the first has computed the prompt, and then share all of it but the last token, which tells each its own
first token.

A sequence whose guide does not know yet which tokens may come next gets none: it stays where it is, and the
others go on.

Steps may be planned while earlier ones run. What was given to a step counts as scheduled from then on, and a
token that a running step will yield as expected: the next step can compute it, for it runs after that one.
Whatever depends on what a token is waits until it is known: blocks are found by their content only once they
are computed, and a preempted sequence comes back with all its tokens known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from python_backend.engine.kv.prefix_cache import extend_hashes, keep_of
from python_backend.wire.tiers import Tier

from .plan import StepPlan

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from python_backend.engine.kv.blocks import BlockPool
    from python_backend.engine.sequence import Sequence

    from .admission import AdmissionRule
    from .plan import Chunk

_rank = attrgetter("rank")
_WORSE_THAN_ALL = max(Tier) + 1

# Number of a block -> hash of one that is being computed -> by whom.
_InProgress = dict[int, dict[bytes, "Sequence"]]


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        rule: AdmissionRule,
        max_batch_size: int,
        max_step_tokens: int,
        reuses_blocks: bool = True,
    ) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._pool = pool
        self._rule = rule
        self._reuses_blocks = reuses_blocks
        self.configure(max_batch_size, max_step_tokens)

    def configure(self, max_batch_size: int, max_step_tokens: int) -> None:
        """New limits from the next step on.

        Those that run stay, even if they are more than are now allowed; a step may exceed its budget by
        their single tokens.
        """
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}; it must be at least 1")
        if max_step_tokens < max_batch_size:
            raise ValueError(
                f"max_step_tokens is {max_step_tokens}; it must be at least max_batch_size "
                f"({max_batch_size}), or some running sequence would get no token"
            )
        self.max_batch_size = max_batch_size
        self.max_step_tokens = max_step_tokens

    def has_tier(self, tier: int) -> bool:
        """Whether a sequence of that tier runs or waits."""
        for row in (self.running, self.waiting):
            first = bisect_left(row, (tier,), key=_rank)
            if first < len(row) and row[first].tier == tier:
                return True
        return False

    def add(self, sequence: Sequence) -> None:
        if self._reuses_blocks:
            self._extend_hashes(sequence)
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequences: Row[Sequence], forget: bool = False) -> None:
        """Takes sequences that ended out of the engine; with `forget` nobody finds their blocks again."""
        if not sequences:
            return
        gone = set(sequences)
        self.running = [sequence for sequence in self.running if sequence not in gone]
        self.waiting = [sequence for sequence in self.waiting if sequence not in gone]
        for sequence in sequences:
            self._pool.release(sequence.table, forget)

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        behind = self._continue_decoding(plan)
        for tier, sequences in groupby(behind, attrgetter("tier")):
            self._admit(plan, better_than=tier)
            for sequence in sequences:
                if sequence not in plan.preempted:
                    self._hand_out(plan, sequence)
        self._admit(plan, better_than=_WORSE_THAN_ALL)
        return plan

    def commit(self, chunk: Chunk) -> None:
        """The chunk is computed; blocks that it filled can be found from now on.

        Those of a sequence that was preempted meanwhile are its own no more. Every token of the chunk is
        known by now, for the steps before it were committed first.
        """
        sequence, size = chunk.sequence, self._pool.tokens_per_block
        if chunk.yields_token:
            sequence.coming_tokens -= 1
        if chunk.preemptions != sequence.preemptions:
            return
        sequence.computed_tokens = end = chunk.start + chunk.count
        if self._reuses_blocks and end % size < chunk.count:  # it filled a block
            self._extend_hashes(sequence)
            for index in range(chunk.start // size, end // size):
                self._pool.publish(sequence.table, index, sequence.hashes[index + 1])
                self._keep(sequence, index)

    def _continue_decoding(self, plan: StepPlan) -> list[Sequence]:
        """One token for each sequence that lacks just one, best rank first; returns those that lack more."""
        behind = []
        size = self._pool.tokens_per_block
        for sequence in self.running:  # which loses none but its last ones meanwhile
            # Every running one comes through here, so properties are written out; and nearly always there is
            # room in the last block.
            tokens = len(sequence.tokens) + sequence.coming_tokens
            lacking = tokens - sequence.scheduled_tokens
            if lacking > 1:
                behind.append(sequence)
            elif (
                lacking
                and tokens < sequence.most_tokens
                and (sequence.guide is None or sequence.guide.is_ready)
            ):
                if len(sequence.table.blocks) * size < tokens and not self._make_room(sequence, plan):
                    break
                plan.add_last(sequence, 1)
        return behind

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Room for the sequence's last token; False when it was itself the last and was preempted."""
        while not self._pool.grow(sequence.table, sequence.expected_tokens):
            if self._preempt_last(plan) is sequence:
                return False
        return True

    def _preempt_last(self, plan: StepPlan) -> Sequence:
        last = self.running.pop()
        self._pool.release(last.table)
        last.computed_tokens = last.scheduled_tokens = 0
        last.preemptions += 1
        self.add(last)
        plan.preempted.append(last)
        plan.drop(last)
        return last

    def _hand_out(self, plan: StepPlan, sequence: Sequence) -> None:
        """What the sequence still lacks, as far as the budget goes."""
        count = min(sequence.unscheduled_tokens, self.max_step_tokens - plan.tokens)
        if count > 0:
            plan.add(sequence, count)

    def _admit(self, plan: StepPlan, better_than: int) -> None:
        """Moves waiting sequences into the batch, best rank first, while rule, batch size and blocks allow.

        One that waits for another's computing, for its guide or for a token still to come is passed by; one
        that lacks a slot or blocks is not.
        """
        if not self.waiting or self.waiting[0].tier >= better_than or not self._has_slot(self.waiting[0]):
            return
        running_before = len(self.running)
        in_progress = self._blocks_in_progress()
        position = 0
        while position < len(self.waiting) and self.waiting[position].tier < better_than:
            sequence = self.waiting[position]
            if not (
                self._rule.is_open(running_before, self.max_step_tokens - plan.tokens)
                and self._has_slot(sequence)
            ):
                return
            if sequence.coming_tokens or sequence.awaits_guide or self._comes_soon(sequence, in_progress):
                position += 1
                continue
            if not self._join(plan, sequence):
                return
            del self.waiting[position]
            insort(self.running, sequence, key=_rank)
            self._hand_out(plan, sequence)
            self._note_block_in_progress(in_progress, sequence)

    def _has_slot(self, sequence: Sequence) -> bool:
        return len(self.running) < self.max_batch_size or self.running[-1].tier > sequence.tier

    def _join(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Takes the blocks the sequence needs, all of them or none."""
        size = self._pool.tokens_per_block
        shared, computed_tokens = self._computed_already(sequence)
        hold_tokens = self._rule.tokens_to_hold(sequence)
        # The next token may fall into the last of the shared blocks, which then has to be copied.
        copies = 1 if computed_tokens % size else 0
        if not self._make_way(plan, sequence, shared, self._pool.blocks_for(hold_tokens) + copies):
            return False
        self._pool.share(sequence.table, shared)
        self._pool.grow(sequence.table, hold_tokens)
        if copies:
            plan.copies.append(self._pool.own(sequence.table, computed_tokens // size))
        for index in range(computed_tokens // size):
            self._keep(sequence, index)
        sequence.computed_tokens = sequence.scheduled_tokens = computed_tokens
        if sequence.preemptions == 0:
            sequence.cached_tokens = computed_tokens
        return True

    def _make_way(self, plan: StepPlan, sequence: Sequence, shared: list[int], blocks: int) -> bool:
        """A slot and `blocks` blocks for one more, if need be those of running sequences of worse tiers.

        Nobody is preempted unless that is enough. A victim's slot suffices even where more are running
        than are allowed by now.
        """
        running, victims, still_held = len(self.running), 0, set(shared)
        free = self._pool.free_after(shared, blocks)
        while (running >= self.max_batch_size and not victims) or free < self._rule.blocks_to_leave(
            running - victims
        ):
            if victims == running or self.running[-1 - victims].tier <= sequence.tier:
                return False
            free += self._pool.freed_without(self.running[-1 - victims].table, still_held)
            victims += 1
        for _ in range(victims):
            self._preempt_last(plan)
        return True

    def _computed_already(self, sequence: Sequence) -> tuple[list[int], int]:
        """Blocks that hold the sequence's first tokens, and how many those are; never all of them."""
        if sequence.leader is not None and sequence.may_fork:
            tokens = sequence.prompt_tokens - 1
            return sequence.leader.table.blocks[: self._pool.blocks_for(tokens)], tokens
        if not self._reuses_blocks or not sequence.may_skip_prompt:
            return [], 0
        size = self._pool.tokens_per_block
        found = self._pool.find(sequence.hashes[1 : 1 + (len(sequence.tokens) - 1) // size])
        return found, len(found) * size

    def _blocks_in_progress(self) -> _InProgress:
        """The block that each running sequence will fill next: all before it can be found already.

        Steps that run have filled it perhaps, but only what they are known to have computed can be found.
        """
        in_progress: _InProgress = {}
        for sequence in self.running:
            self._note_block_in_progress(in_progress, sequence)
        return in_progress

    def _note_block_in_progress(self, in_progress: _InProgress, sequence: Sequence) -> None:
        number = sequence.computed_tokens // self._pool.tokens_per_block + 1
        if sequence.pending_tokens > 1 and number < len(sequence.hashes):
            computing = in_progress.setdefault(number, {})
            first = computing.setdefault(sequence.hashes[number], sequence)
            if sequence.rank < first.rank:
                computing[sequence.hashes[number]] = sequence

    def _comes_soon(self, sequence: Sequence, in_progress: _InProgress) -> bool:
        """Whether one before it in rank is computing what it would have to compute next."""
        if not self._rule.lets_wait:
            return False
        if sequence.awaits_leader:
            return True
        if not in_progress or sequence.may_fork or not sequence.may_skip_prompt:
            return False
        last = (len(sequence.tokens) - 1) // self._pool.tokens_per_block
        return any(
            number <= last
            and (other := computing.get(sequence.hashes[number])) is not None
            and other.rank < sequence.rank
            for number, computing in in_progress.items()
        )

    def _extend_hashes(self, sequence: Sequence) -> None:
        request, size = sequence.request, self._pool.tokens_per_block
        shared_blocks = request.shared_tokens // size if request.shared_tokens else None
        extend_hashes(sequence.hashes, sequence.tokens, size, shared_blocks, request.cache_salt)

    def _keep(self, sequence: Sequence, index: int) -> None:
        if (keep := keep_of(sequence.request, index * self._pool.tokens_per_block)) is not None:
            self._pool.keep(sequence.table.blocks[index], keep)
