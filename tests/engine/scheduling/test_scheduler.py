from __future__ import annotations

import time

import pytest

from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.admission import admission_rule
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.scheduling.scheduler import Scheduler
from python_backend.engine.sequence import Sequence
from python_backend.wire.tiers import Tier
from tests.pace import patience


class World:
    """A scheduler with a model that always answers 0."""

    def __init__(
        self,
        total_blocks: int = 100,
        tokens_per_block: int = 4,
        max_batch_size: int = 8,
        max_step_tokens: int = 16,
        guaranteed_no_evict: bool = False,
        static_batching: bool = False,
        reuses_blocks: bool = True,
        even_context: int | None = None,
    ) -> None:
        self.pool = BlockPool(total_blocks, tokens_per_block)
        rule = admission_rule(guaranteed_no_evict, static_batching)
        self.scheduler = Scheduler(
            self.pool, rule, max_batch_size, max_step_tokens, reuses_blocks, even_context
        )
        self._arrivals = 0

    def add(self, prompt_tokens: int, max_new_tokens: int = 100, tier: Tier = Tier.STANDARD) -> Sequence:
        """A prompt that has nothing in common with any other."""
        return self.add_prompt([self._arrivals] * prompt_tokens, max_new_tokens, tier)

    def add_prompt(
        self, prompt_ids: list[int], max_new_tokens: int = 100, tier: Tier = Tier.STANDARD
    ) -> Sequence:
        request = GenerationRequest(prompt_ids, max_new_tokens, tier=tier)
        sequence = Sequence(self._arrivals, self._arrivals, request, max_new_tokens)
        self._arrivals += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[int, int]:
        """Which sequence got how many tokens."""
        plan = self.scheduler.schedule()
        self.commit(plan)
        return {chunk.sequence.key: chunk.count for chunk in plan.chunks}

    def commit(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            self.scheduler.commit(chunk)
            if chunk.yields_token:
                chunk.sequence.accept(0)
        self.scheduler.remove([chunk.sequence for chunk in plan.chunks if chunk.sequence.finish_reason])
        self.pool.check()
        for line in (self.scheduler.running, self.scheduler.waiting):
            ranks = [sequence.rank for sequence in line]
            assert ranks == sorted(ranks)


def test_a_long_prompt_is_spread_over_steps() -> None:
    world = World(max_step_tokens=16)
    world.add(40)
    assert [world.step() for _ in range(4)] == [{0: 16}, {0: 16}, {0: 8}, {0: 1}]


def test_tokens_behind_a_long_context_count_as_several() -> None:
    world = World(total_blocks=1000, max_step_tokens=200, even_context=400)
    world.add(1000)
    assert [world.step() for _ in range(7)] == [{0: count} for count in (200, 200, 200, 133, 109, 95, 63)]


def test_a_prompt_behind_a_long_context_takes_a_whole_step_with_few_tokens() -> None:
    world = World(total_blocks=1000, max_step_tokens=1000, even_context=100)
    world.add(1200)
    world.step()
    world.add(1200)
    plan = world.scheduler.schedule()
    assert [(chunk.start, chunk.count) for chunk in plan.chunks] == [(1000, 100)]
    assert plan.tokens + plan.long_context_tokens == 1000


def test_no_decoding_sequence_waits_for_a_long_prompt() -> None:
    world = World(max_step_tokens=16)
    world.add(4)
    world.step()
    world.add(40)
    assert world.step() == {0: 1, 1: 15}
    assert world.step() == {0: 1, 1: 15}
    assert world.step() == {0: 1, 1: 10}
    assert world.step() == {0: 1, 1: 1}


def test_a_prompt_begun_earlier_goes_before_a_new_one() -> None:
    world = World(max_step_tokens=16)
    world.add(20)
    world.step()
    world.add(20)
    assert world.step() == {0: 4, 1: 12}


def test_several_short_prompts_share_a_step() -> None:
    world = World(max_step_tokens=16)
    for _ in range(4):
        world.add(5)
    assert world.step() == {0: 5, 1: 5, 2: 5, 3: 1}


def test_a_finished_sequence_leaves_and_a_waiting_one_joins_between_steps() -> None:
    world = World(max_batch_size=2)
    world.add(2, max_new_tokens=1)
    world.add(2, max_new_tokens=3)
    world.add(2, max_new_tokens=3)
    assert world.step() == {0: 2, 1: 2}
    assert world.step() == {1: 1, 2: 2}


def test_sequences_join_by_free_blocks() -> None:
    world = World(total_blocks=4, guaranteed_no_evict=True)
    world.add(4, max_new_tokens=5)
    world.add(4, max_new_tokens=5)
    world.add(1, max_new_tokens=1)
    assert world.step() == {0: 4, 1: 4}
    for _ in range(4):
        world.step()
    assert world.step() == {2: 1}


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    world = World(total_blocks=4, guaranteed_no_evict=True)
    world.add(4, max_new_tokens=5)
    world.add(8, max_new_tokens=5)
    world.add(1, max_new_tokens=1)
    assert world.step() == {0: 4}


def test_guaranteed_no_evict_reserves_prompt_and_answer() -> None:
    world = World(total_blocks=10, guaranteed_no_evict=True)
    world.add(4, max_new_tokens=13)
    world.step()
    assert world.pool.used_blocks == 4


def test_max_utilization_takes_only_the_blocks_of_existing_tokens() -> None:
    world = World(total_blocks=10)
    world.add(4, max_new_tokens=13)
    world.step()
    assert world.pool.used_blocks == 1
    world.step()
    assert world.pool.used_blocks == 2


def test_max_utilization_leaves_a_block_for_each_running_sequence_before_one_more_joins() -> None:
    world = World(total_blocks=3)
    world.add(4)
    world.step()
    world.add(3)
    assert world.step() == {0: 1}
    world = World(total_blocks=4)
    world.add(4)
    world.step()
    world.add(3)
    assert world.step() == {0: 1, 1: 3}


def test_the_youngest_sequence_is_preempted_when_blocks_run_out_and_is_recomputed() -> None:
    world = World(total_blocks=4)
    old, young = world.add(8), world.add(3)
    assert world.step() == {0: 8, 1: 3}
    assert world.step() == {0: 1, 1: 1}
    assert world.pool.free_blocks == 0
    plan = world.scheduler.schedule()
    assert [chunk.sequence for chunk in plan.chunks] == [old]
    assert plan.preempted == [young]
    assert (young.computed_tokens, young.tokens.tolist(), len(young.table.blocks)) == (0, [1, 1, 1, 0, 0], 0)
    assert world.scheduler.waiting[0] is young


def test_guaranteed_no_evict_never_preempts() -> None:
    world = World(total_blocks=9, guaranteed_no_evict=True)
    for _ in range(12):
        world.add(5, max_new_tokens=8)
    while world.scheduler.running or world.scheduler.waiting:
        plan = world.scheduler.schedule()
        assert not plan.preempted
        world.commit(plan)


def test_a_static_batch_forms_only_when_the_last_one_is_completely_finished() -> None:
    world = World(max_batch_size=2, static_batching=True)
    world.add(2, max_new_tokens=1)
    world.add(2, max_new_tokens=3)
    world.add(2, max_new_tokens=1)
    assert [world.step() for _ in range(4)] == [{0: 2, 1: 2}, {1: 1}, {1: 1}, {2: 2}]


def test_a_static_batch_admits_no_later_arrivals() -> None:
    world = World(static_batching=True)
    world.add(2, max_new_tokens=2)
    world.step()
    world.add(2, max_new_tokens=1)
    assert world.step() == {0: 1}
    assert world.step() == {1: 2}


def test_a_static_batch_is_whole_even_if_its_prompts_take_several_steps() -> None:
    world = World(max_batch_size=3, max_step_tokens=4, static_batching=True)
    for _ in range(4):
        world.add(3, max_new_tokens=1)
    assert [world.step() for _ in range(3)] == [{0: 3, 1: 1}, {1: 2, 2: 2}, {2: 1}]
    assert world.step() == {3: 3}


def test_a_one_token_prompt_that_joins_without_budget_is_scheduled_once() -> None:
    world = World(max_batch_size=3, max_step_tokens=3, static_batching=True)
    world.add(3, max_new_tokens=1)
    world.add(1, max_new_tokens=1)
    assert [world.step() for _ in range(2)] == [{0: 3}, {1: 1}]


def test_a_step_budget_below_the_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least max_batch_size"):
        World(max_batch_size=8, max_step_tokens=7)


def test_scheduling_256_running_sequences_takes_well_under_a_millisecond() -> None:
    world = World(total_blocks=10_000, max_batch_size=256, max_step_tokens=8192, tokens_per_block=16)
    for _ in range(256):
        world.add(20, max_new_tokens=1000)
    world.step()
    fastest_s = 1.0
    for _ in range(30):
        started_s = time.thread_time()
        plan = world.scheduler.schedule()
        for chunk in plan.chunks:
            world.scheduler.commit(chunk)
        fastest_s = min(fastest_s, time.thread_time() - started_s)
        assert len(plan.chunks) == 256
        for chunk in plan.chunks:
            chunk.sequence.accept(0)
    assert fastest_s < patience(0.001)


def test_a_step_can_be_planned_while_the_last_one_runs() -> None:
    world = World(tokens_per_block=4)
    sequence = world.add(4, max_new_tokens=3)
    running = world.scheduler.schedule()
    behind_it = world.scheduler.schedule()
    (first,), (second,) = running.chunks, behind_it.chunks
    assert (first.start, first.count, first.yields_token) == (0, 4, True)
    assert (second.start, second.count, second.yields_token) == (4, 1, True)
    assert (sequence.computed_tokens, sequence.scheduled_tokens, sequence.coming_tokens) == (0, 5, 2)
    assert len(sequence.table.blocks) == 2
    world.commit(running)
    assert (sequence.computed_tokens, sequence.scheduled_tokens, sequence.coming_tokens) == (4, 5, 1)
    world.commit(behind_it)
    world.commit(world.scheduler.schedule())
    assert not world.scheduler.running


def test_a_sequence_preempted_with_a_token_to_come_waits_for_it() -> None:
    world = World(max_batch_size=1)
    young = world.add(9, tier=Tier.BATCH)
    running = world.scheduler.schedule()
    urgent = world.add(1, max_new_tokens=1, tier=Tier.INTERACTIVE)
    taking_its_place = world.scheduler.schedule()
    assert taking_its_place.preempted == [young]
    assert (young.computed_tokens, young.scheduled_tokens, young.coming_tokens) == (0, 0, 1)
    world.scheduler.remove([urgent])
    assert world.scheduler.schedule().chunks == []
    world.commit(running)
    assert (young.computed_tokens, young.coming_tokens, len(young.tokens)) == (0, 0, 10)
    assert world.pool.cached_blocks == 0
    assert world.step() == {0: 10}


def test_a_chunk_planned_for_a_sequence_preempted_in_the_same_step_is_undone() -> None:
    world = World(total_blocks=4)
    world.add(3, tier=Tier.BATCH)
    young = world.add(5, tier=Tier.BATCH)
    world.step()
    world.add(9, tier=Tier.INTERACTIVE)
    plan = world.scheduler.schedule()
    assert young in plan.preempted
    assert (young.scheduled_tokens, young.coming_tokens) == (0, 0)


def test_a_better_tier_is_scheduled_first_and_within_a_tier_the_earlier() -> None:
    world = World(max_batch_size=1)
    for tier in (Tier.BATCH, Tier.STANDARD, Tier.INTERACTIVE, Tier.STANDARD):
        world.add(2, max_new_tokens=1, tier=tier)
    assert [world.step() for _ in range(4)] == [{2: 2}, {1: 2}, {3: 2}, {0: 2}]


def test_a_better_tier_takes_the_slot_of_the_youngest_of_the_worst() -> None:
    world = World(max_batch_size=3)
    for tier in (Tier.BATCH, Tier.BATCH, Tier.STANDARD):
        world.add(2, tier=tier)
    world.step()
    world.add(2, tier=Tier.INTERACTIVE)
    plan = world.scheduler.schedule()
    assert [sequence.key for sequence in plan.preempted] == [1]
    assert {chunk.sequence.key for chunk in plan.chunks} == {0, 2, 3}
    world.commit(plan)
    assert world.step() == {0: 1, 2: 1, 3: 1}


def test_a_tier_never_takes_a_slot_from_its_own_or_a_better_one() -> None:
    world = World(max_batch_size=2)
    world.add(2, max_new_tokens=2, tier=Tier.INTERACTIVE)
    world.add(2, max_new_tokens=2)
    world.step()
    world.add(2)
    world.add(2, tier=Tier.BATCH)
    assert world.step() == {0: 1, 1: 1}


@pytest.mark.parametrize("guaranteed_no_evict", [False, True])
def test_a_better_tier_takes_the_blocks_of_as_many_as_it_needs(guaranteed_no_evict: bool) -> None:
    world = World(total_blocks=8, guaranteed_no_evict=guaranteed_no_evict)
    for _ in range(3):
        world.add(7, max_new_tokens=2, tier=Tier.BATCH)
    world.step()
    world.add(13, max_new_tokens=4, tier=Tier.INTERACTIVE)
    plan = world.scheduler.schedule()
    assert [sequence.key for sequence in plan.preempted] == ([2] if guaranteed_no_evict else [2, 1])
    assert 3 in {chunk.sequence.key for chunk in plan.chunks}


def test_no_sequence_is_preempted_if_that_would_not_be_enough() -> None:
    world = World(total_blocks=8, guaranteed_no_evict=True, max_step_tokens=32)
    world.add(16, max_new_tokens=5)
    world.add(4, max_new_tokens=2, tier=Tier.BATCH)
    world.step()
    world.add(16, max_new_tokens=5, tier=Tier.STANDARD)
    plan = world.scheduler.schedule()
    assert (plan.preempted, len(plan.chunks)) == ([], 2)


def test_growth_preempts_the_worst_tier_before_the_youngest() -> None:
    world = World(total_blocks=4)
    worst = world.add(3, tier=Tier.BATCH)
    world.step()
    world.add(8, tier=Tier.STANDARD)
    world.step()
    while not (plan := world.scheduler.schedule()).preempted:
        world.commit(plan)
    assert plan.preempted == [worst]


def test_two_prompts_with_a_common_prefix_compute_it_once() -> None:
    world = World(max_step_tokens=16)
    world.add_prompt([5] * 12 + [1, 2])
    world.add_prompt([5] * 12 + [3])
    assert world.step() == {0: 14}
    assert world.step() == {0: 1, 1: 1}
    assert world.scheduler.running[1].table.reused_blocks == 3


def test_a_sequence_that_waits_for_a_shared_prefix_lets_others_pass() -> None:
    world = World(max_step_tokens=16)
    world.add_prompt([5] * 12 + [1])
    world.add_prompt([5] * 12 + [2])
    world.add(3)
    assert world.step() == {0: 13, 2: 3}
    assert world.step() == {0: 1, 2: 1, 1: 1}


def test_a_sequence_does_not_wait_for_the_prefix_of_a_lower_tier() -> None:
    world = World(max_step_tokens=16)
    world.add_prompt([5] * 40, tier=Tier.BATCH)
    world.step()
    world.add_prompt([5] * 30, tier=Tier.INTERACTIVE)
    assert world.step() == {1: 14, 0: 2}


def test_a_prompt_of_a_better_tier_does_not_wait_for_the_prompts_of_worse_ones() -> None:
    world = World(max_step_tokens=16)
    world.add(40, tier=Tier.BATCH)
    world.step()
    world.add(10, tier=Tier.STANDARD)
    world.add(20, tier=Tier.INTERACTIVE)
    assert [world.step() for _ in range(2)] == [{2: 16}, {2: 4, 1: 10, 0: 2}]


def test_a_fully_cached_prompt_still_has_its_last_block_computed() -> None:
    world = World()
    world.add_prompt([5] * 8, max_new_tokens=1)
    world.step()
    world.add_prompt([5] * 8, max_new_tokens=1)
    assert world.step() == {1: 4}


def test_without_reuse_every_sequence_computes_its_whole_prompt() -> None:
    world = World(reuses_blocks=False)
    world.add_prompt([5] * 8, max_new_tokens=1)
    world.add_prompt([5] * 8, max_new_tokens=1)
    assert world.step() == {0: 8, 1: 8}
    assert world.pool.cached_blocks == 0


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    world = World(max_batch_size=1)
    world.add(9, tier=Tier.BATCH)
    world.step()
    world.add(1, max_new_tokens=1, tier=Tier.INTERACTIVE)
    assert world.step() == {1: 1}
    assert world.step() == {0: 2}


def test_running_sequences_finish_under_a_lower_batch_limit_and_none_joins() -> None:
    world = World(max_batch_size=4)
    for _ in range(4):
        world.add(1, max_new_tokens=2)
    world.step()
    world.add(1, max_new_tokens=2)
    world.scheduler.configure(max_batch_size=1, max_step_tokens=2)
    assert world.step() == {0: 1, 1: 1, 2: 1, 3: 1}
    assert world.step() == {4: 1}


def test_only_one_sequence_is_preempted_for_a_better_tier_even_if_too_many_run() -> None:
    world = World(max_batch_size=4)
    for _ in range(4):
        world.add(1, tier=Tier.BATCH)
    world.step()
    world.scheduler.configure(max_batch_size=2, max_step_tokens=16)
    world.add(1, tier=Tier.INTERACTIVE)
    assert world.step() == {0: 1, 1: 1, 2: 1, 4: 1}


def test_blocks_that_the_joiner_shares_with_its_victim_do_not_become_free() -> None:
    world = World(total_blocks=7, guaranteed_no_evict=True, max_step_tokens=32)
    world.add(5, max_new_tokens=4)
    world.add_prompt([9] * 12, max_new_tokens=5, tier=Tier.BATCH)
    world.step()
    world.add_prompt([9] * 12, max_new_tokens=13)
    plan = world.scheduler.schedule()
    assert (plan.preempted, len(plan.chunks)) == ([], 2)


def test_a_preempted_sequence_does_not_come_back_in_the_same_step() -> None:
    world = World(total_blocks=6, max_batch_size=3)
    world.add(3, tier=Tier.BATCH)
    world.add(6, tier=Tier.BATCH)
    world.step()
    world.add(7, tier=Tier.INTERACTIVE)
    plan = world.scheduler.schedule()
    assert plan.preempted
    assert not set(plan.preempted) & {chunk.sequence for chunk in plan.chunks}


def test_a_long_prompt_leaves_a_part_of_each_step_to_shorter_ones() -> None:
    world = World(total_blocks=400, max_step_tokens=64)
    world.add(1000)
    assert world.step() == {0: 64}
    world.add(8)
    world.add(8)
    assert world.step() == {0: 48, 1: 8, 2: 8}
    assert world.step() == {0: 62, 1: 1, 2: 1}


def test_copies_for_a_sequence_that_loses_its_blocks_are_taken_back() -> None:
    world = World()
    sequence = world.add(4)
    sequence.table.blocks.extend([3, 7])
    kept = BlockCopy(1, 2)
    plan = StepPlan(copies=[BlockCopy(0, 7), kept])
    plan.forget_copies(sequence)
    assert plan.copies == [kept]
