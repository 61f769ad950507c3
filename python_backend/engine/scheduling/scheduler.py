"""Iteration-level scheduling: which sequences get how many tokens in the next step.

There is no prefill phase and no decode phase. A sequence has tokens, some of them computed; a step hands
out the others under one token budget, first to the sequences that lack a single token (their clients wait
for the next one), then to those with more to catch up, then to new ones, unless these are of a better tier.
A long prompt is thereby spread over steps and nobody's next token waits for it. Behind a long context, where
attention takes longer than everything else, a token counts as several.

Running and waiting are each in order of rank: better tiers first, and within a tier by arrival. A sequence
joins with the blocks of every token it has, so only the growth of running sequences can find the pool
empty. Then the last in rank is preempted: it gives its blocks back, waits in its old order and is recomputed
later. A waiting sequence also takes the slot or the blocks of running ones of a worse tier.

Where all slots are taken, the youngest sequence of the tenant that is furthest above its part is paused for
one of a tenant below (`sharing.places`), and where more run than keep the latency targets, for nobody. It
waits in its old order and keeps its blocks while nobody needs them. Of each sequence this is bounded, in
number and in time; so the work always ends.

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

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from python_backend.engine.kv.blocks import NOTHING
from python_backend.engine.kv.prefix_cache import Chains, keep_of
from python_backend.wire.tiers import Tier

from .batch import Batch
from .blocks_in_progress import BlocksInProgress
from .budget import handed_out, part_for_short, times_as_long
from .plan import StepPlan

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from python_backend.engine.kv.blocks import BlockPool
    from python_backend.engine.kv.table import Prefix
    from python_backend.engine.sequence import Sequence
    from python_backend.sharing.places import Holder

    from .admission import AdmissionRule
    from .plan import Chunk

_WORSE_THAN_ALL = max(Tier) + 1


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        rule: AdmissionRule,
        max_batch_size: int,
        max_step_tokens: int,
        reuses_blocks: bool = True,
        even_context: int | None = None,
    ) -> None:
        self.batch: Batch[Sequence] = Batch(max_batch_size)
        self._pool = pool
        self._rule = rule
        self._reuses_blocks = reuses_blocks
        self._even_context = even_context
        self._chains = Chains(pool.tokens_per_block)
        self.configure(max_batch_size, max_step_tokens)

    @property
    def running(self) -> list[Sequence]:
        return self.batch.running

    @property
    def waiting(self) -> list[Sequence]:
        return self.batch.waiting

    @property
    def max_batch_size(self) -> int:
        return self.batch.limit

    def configure(self, max_batch_size: int, max_step_tokens: int, most_running: int | None = None) -> None:
        """New limits from the next step on.

        Those that run stay, even if they are more than may join by now, but for those beyond `most_running`,
        which are paused; a step may exceed its budget by single tokens of those that run.
        """
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}; it must be at least 1")
        if max_step_tokens < max_batch_size:
            raise ValueError(
                f"max_step_tokens is {max_step_tokens}; it must be at least max_batch_size "
                f"({max_batch_size}), or some running sequence would get no token"
            )
        self.batch.limit = max_batch_size
        self.max_step_tokens = max_step_tokens
        self._most_running = most_running

    def add(self, sequence: Sequence) -> None:
        if self._reuses_blocks:
            self._extend_hashes(sequence)
        self.batch.put(sequence)

    def remove(self, sequences: Row[Sequence], forget: bool = False) -> None:
        """Takes sequences that ended out of the engine; with `forget` nobody finds their blocks again."""
        if not sequences:
            return
        self.batch.remove(sequences)
        for sequence in sequences:
            if forget:
                self._pool.forget(sequence.hashes[1 : 1 + sequence.table.gone])
            self._pool.release(sequence.table, forget)

    def schedule(self, now_ns: int = 0) -> StepPlan:
        self.batch.now_ns = now_ns
        plan = StepPlan()
        self._shrink(plan)
        behind = self._continue_decoding(plan)
        for tier, sequences in groupby(behind, attrgetter("tier")):
            self._admit(plan, better_than=tier)
            for sequence in sequences:
                if not sequence.is_paused and sequence not in plan.preempted:
                    self._hand_out(plan, sequence)
        self._admit(plan, better_than=_WORSE_THAN_ALL)
        return plan

    def reach(self, plan: StepPlan) -> None:
        """Takes the blocks that the plan's chunks will write, where they were only promised."""
        if self._pool.window is not None:
            for chunk in plan.chunks:
                self._pool.reach(chunk.sequence.table, chunk.end)

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
        self._pool.slide(sequence.table, end)

    def put_back(self, chunk: Chunk) -> None:
        """The chunk will yield no token: its last one is to be computed once more, when it can."""
        chunk.sequence.scheduled_tokens -= 1
        chunk.sequence.coming_tokens -= 1
        chunk.count -= 1
        chunk.yields_token = False

    # Who runs

    def _shrink(self, plan: StepPlan) -> None:
        while self._most_running is not None and len(self.running) > self._most_running:
            victim = self.batch.surplus()
            if victim is None:
                return
            self._pause(plan, victim)

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
                if sequence.table.room * size < tokens and not self._make_room(sequence, plan):
                    break
                plan.add_last(sequence, 1)
        return behind

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Room for the sequence's last token; False when it was itself the last and was preempted."""
        while not self._pool.grow(sequence.table, sequence.expected_tokens):
            if keeping := self.batch.keeping(sequence):
                self._take_blocks(plan, keeping[-1])
                continue
            last = self.running[-1]
            self._preempt(plan, last)
            if last is sequence:
                return False
        return True

    def _hand_out(self, plan: StepPlan, sequence: Sequence) -> None:
        """What the sequence still lacks, as far as the budget goes."""
        lacking, most = sequence.unscheduled_tokens, self.max_step_tokens
        times = times_as_long(sequence.scheduled_tokens, self._even_context)
        count = handed_out(lacking, self._left(plan), most, lambda: self._has_shorter(plan, sequence), times)
        if count > 0:
            plan.add(sequence, count)
            plan.long_context_tokens += int(count * (times - 1.0))

    def _left(self, plan: StepPlan) -> int:
        return self.max_step_tokens - plan.tokens - plan.long_context_tokens

    def _has_shorter(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Whether a short prompt of the same tier has nothing of the step yet."""
        most_tokens = part_for_short(self.max_step_tokens)
        waiting = [] if self.batch.is_full else self.waiting
        others = {*self.running, *waiting} - {sequence, *(chunk.sequence for chunk in plan.chunks)}
        return any(
            other.tier == sequence.tier and 1 < other.unscheduled_tokens <= most_tokens for other in others
        )

    def _admit(self, plan: StepPlan, better_than: int) -> None:
        """Moves waiting sequences into the batch, best rank first, while rule, batch size and blocks allow.

        One that waits for another's computing, for its guide or for a token still to come is passed by. Where
        slots or blocks are lacking, only those go on that others give way to (`takers`).
        """
        if not self.waiting or self.waiting[0].tier >= better_than:
            return
        takers = self._takers() if self.batch.is_full else None
        if takers is not None and not takers:
            return
        running_before = len(self.running)
        in_progress = BlocksInProgress(self.running, self._pool.tokens_per_block)
        position = 0
        while position < len(self.waiting) and self.waiting[position].tier < better_than:
            sequence = self.waiting[position]
            if not self._rule.is_open(running_before, self._left(plan)):
                return
            if takers is None and self.batch.is_full:
                takers = self._takers()
            if takers is not None and not takers:
                return
            if self._lets_pass(sequence, takers, in_progress):
                position += 1
                continue
            if not self._join(plan, sequence):
                takers = (self._takers() if takers is None else takers) - {sequence.holder}
                continue
            position = self.batch.enter(sequence)
            self._hand_out(plan, sequence)
            in_progress.note(sequence)
            if takers is not None:
                takers = self._takers()

    def _lets_pass(
        self, sequence: Sequence, takers: set[Holder] | None, in_progress: BlocksInProgress
    ) -> bool:
        if takers is not None and sequence.holder not in takers:
            return True
        if sequence.coming_tokens or sequence.awaits_guide:
            return True
        if sequence.is_paused and takers is None and self.batch.is_outdone(sequence):
            return True
        return self._rule.lets_wait and in_progress.comes_soon(sequence)

    def _takers(self) -> set[Holder]:
        return self.batch.takers() if self._rule.lets_wait else set()

    def _join(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Takes the blocks the sequence needs, all of them or none."""
        size, hold_tokens = self._pool.tokens_per_block, self._rule.tokens_to_hold(sequence)
        if sequence.has_blocks:  # it was paused, and kept them
            if not self._make_way(plan, sequence, NOTHING, 0):
                return False
            return self._pool.grow(sequence.table, hold_tokens)
        prefix = self._computed_already(plan, sequence)
        computed_tokens = prefix.tokens
        # The next token may fall into the last of the shared blocks, which then has to be copied.
        copies = 1 if computed_tokens % size else 0
        if not self._make_way(plan, sequence, prefix, copies):
            return False
        self._pool.share(sequence.table, prefix)
        self._pool.grow(sequence.table, hold_tokens)
        if copies:
            plan.copies += self._pool.own(sequence.table, computed_tokens // size)
        for index in range(computed_tokens // size):
            self._keep(sequence, index)
        sequence.computed_tokens = sequence.scheduled_tokens = computed_tokens
        if sequence.preemptions == 0:
            sequence.cached_tokens = computed_tokens
        return True

    def _make_way(self, plan: StepPlan, sequence: Sequence, prefix: Prefix, copies: int) -> bool:
        """A slot and blocks for one more that begins with `prefix`, if need be those of others.

        Nobody loses anything unless that is enough. A victim's slot suffices even where more are running than
        are allowed by now. Blocks come from those that wait first.
        """
        pool, table = self._pool, sequence.table
        spare = pool.spare_after(table, self._rule.tokens_to_hold(sequence), prefix, copies)
        still_held = {*table.blocks, *prefix.blocks}
        lacks_slot = self.batch.is_full and not self.batch.may_exceed(sequence)
        victims: list[Sequence] = []
        emptied: list[Sequence] = []
        keeping = self.batch.keeping(sequence)
        while lacks_slot or spare < self._to_leave(len(self.running) - len(victims)):
            if keeping and not lacks_slot:
                other = keeping.pop()
            else:
                victim = self.batch.victim_for(sequence, victims)
                if victim is None or (victim.tier <= sequence.tier and not self._rule.lets_wait):
                    return False
                lacks_slot, other = False, victim
                victims.append(victim)
                if victim.tier <= sequence.tier:  # it is only paused: its blocks are taken if need be
                    keeping.append(victim)
                    continue
            emptied.append(other)
            spare += pool.spared_without(other.table, still_held)
        for victim in victims:
            if victim.tier <= sequence.tier:
                self._pause(plan, victim)
            else:
                self._preempt(plan, victim)
        for other in emptied:
            if other.has_blocks:
                self._take_blocks(plan, other)
        return True

    def _to_leave(self, running: int) -> int:
        return self._rule.blocks_to_leave(running) * self._pool.blocks_per_stretch

    def _pause(self, plan: StepPlan, sequence: Sequence) -> None:
        self.batch.pause(sequence)
        plan.drop(sequence)
        plan.paused.append(sequence)

    def _preempt(self, plan: StepPlan, sequence: Sequence) -> None:
        self.batch.leave(sequence)
        plan.drop(sequence)
        self._take_blocks(plan, sequence)

    # Blocks

    def _take_blocks(self, plan: StepPlan, sequence: Sequence) -> None:
        """It waits, and is recomputed when it runs again."""
        plan.forget_copies(sequence)
        self._pool.release(sequence.table)
        sequence.computed_tokens = sequence.scheduled_tokens = 0
        sequence.preemptions += 1
        plan.preempted.append(sequence)
        if self._reuses_blocks:
            self._extend_hashes(sequence)

    def _computed_already(self, plan: StepPlan, sequence: Sequence) -> Prefix:
        """The sequence's first tokens that need not be computed; never all of them.

        Not from the host while blocks are to be copied: what comes could take the place of one before that.
        """
        if sequence.leader is not None and sequence.may_fork:
            forked = self._pool.fork(sequence.leader.table, sequence.prompt_tokens - 1)
            if forked is not None:
                return forked
        if not self._reuses_blocks or not sequence.may_skip_prompt:
            return NOTHING
        last = (len(sequence.tokens) - 1) // self._pool.tokens_per_block
        return self._pool.find(sequence.hashes[1 : 1 + last], uses_host=not plan.copies)

    def _extend_hashes(self, sequence: Sequence) -> None:
        request, size = sequence.request, self._pool.tokens_per_block
        shared_blocks = request.shared_tokens // size if request.shared_tokens else None
        self._chains.extend(sequence.hashes, sequence.tokens, shared_blocks, request.cache_salt)

    def _keep(self, sequence: Sequence, index: int) -> None:
        if (keep := keep_of(sequence.request, index * self._pool.tokens_per_block)) is not None:
            self._pool.keep(sequence.table, index, keep)
