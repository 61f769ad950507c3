"""Who is paused for whom, and that it goes on where it was."""

from __future__ import annotations

import pytest

from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.admission import admission_rule
from python_backend.engine.scheduling.batch import LONGEST_PAUSE_NS, MOST_PAUSES
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.scheduling.scheduler import Scheduler
from python_backend.engine.sequence import Sequence
from python_backend.wire.tiers import Tier

SECOND_NS = 1_000_000_000


class Shared:
    """A batch of several tenants, whose model always answers 0."""

    def __init__(self, slots: int = 4, blocks: int = 100, whole_answers: bool = False) -> None:
        self.pool = BlockPool(blocks, 4)
        self.scheduler = Scheduler(self.pool, admission_rule(whole_answers, False), slots, 64)
        self.now_ns = 0
        self._arrivals = 0

    def add(self, tenant: str, tokens: int = 100, tier: Tier = Tier.STANDARD, prompt: int = 3) -> Sequence:
        request = GenerationRequest([self._arrivals] * prompt, tokens, tier=tier, tenant=tenant, weight=1.0)
        sequence = Sequence(self._arrivals, self._arrivals, request, tokens)
        self._arrivals += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self, passes_ns: int = 0) -> StepPlan:
        self.now_ns += passes_ns
        plan = self.scheduler.schedule(self.now_ns)
        for chunk in plan.chunks:
            self.scheduler.commit(chunk)
            if chunk.yields_token:
                chunk.sequence.accept(0)
        self.scheduler.remove([chunk.sequence for chunk in plan.chunks if chunk.sequence.finish_reason])
        self.pool.check()
        self.scheduler.batch.check()
        return plan


def keys(sequences: list[Sequence]) -> list[int]:
    return [sequence.key for sequence in sequences]


def test_the_youngest_of_the_tenant_with_most_is_paused_for_one_with_less() -> None:
    shared = Shared()
    for _ in range(4):
        shared.add("flood")
    shared.step()
    calm = shared.add("calm")
    plan = shared.step()
    assert (keys(plan.paused), plan.preempted) == ([3], [])
    assert calm in shared.scheduler.running


def test_a_paused_sequence_keeps_its_blocks_and_goes_on_with_its_next_token() -> None:
    shared = Shared()
    flood = [shared.add("flood") for _ in range(4)]
    shared.step()
    shared.step()
    shared.add("calm", tokens=2)
    shared.step()
    assert flood[3].is_paused
    assert flood[3].table.blocks
    shared.step()
    plan = shared.step()
    assert [(chunk.start, chunk.count) for chunk in plan.chunks if chunk.sequence is flood[3]] == [(4, 1)]
    assert (flood[3].is_paused, flood[3].pauses, flood[3].preemptions) == (False, 1, 0)


def test_blocks_of_a_paused_sequence_are_taken_where_a_running_one_needs_them() -> None:
    shared = Shared(slots=2, blocks=4)
    first, second = shared.add("flood", tokens=8), shared.add("flood", tokens=8)
    shared.step()
    shared.add("calm", tokens=8)
    for _ in range(4):
        shared.step()
    assert (second.is_paused, second.preemptions, second.table.blocks) == (True, 1, [])
    for _ in range(30):
        shared.step()
    assert (first.preemptions, second.generated_tokens) == (0, 8)


def test_a_full_cache_is_shared_as_a_full_batch_is() -> None:
    shared = Shared(slots=8, blocks=8, whole_answers=True)
    for _ in range(5):
        shared.add("flood", tokens=6)
    shared.step()
    assert len(shared.scheduler.running) == 4
    calm = shared.add("calm", tokens=6)
    plan = shared.step()
    assert keys(plan.paused) == keys(plan.preempted) == [3]
    assert calm in shared.scheduler.running


def test_nobody_is_paused_among_tenants_with_the_same_number() -> None:
    shared = Shared(slots=4)
    for tenant in ("one", "one", "other", "other"):
        shared.add(tenant)
    shared.step()
    shared.add("one")
    shared.add("other")
    assert shared.step().paused == []


def test_a_worse_tier_below_its_guarantee_has_a_better_one_paused_for_it() -> None:
    shared = Shared(slots=4)
    for _ in range(4):
        shared.add("flood", tier=Tier.INTERACTIVE)
    shared.step()
    calm = shared.add("calm")
    assert keys(shared.step().paused) == [3]
    shared.add("flood", tier=Tier.INTERACTIVE)
    assert shared.step().paused == []
    assert calm in shared.scheduler.running


def test_those_beyond_what_the_objective_allows_are_paused_youngest_first() -> None:
    shared = Shared(slots=8)
    for _ in range(6):
        shared.add("flood")
    shared.step()
    shared.scheduler.configure(3, 64, most_running=4)
    assert keys(shared.step().paused) == [5, 4]
    assert len(shared.scheduler.running) == 4


def test_a_sequence_is_paused_no_more_than_a_few_times() -> None:
    shared = Shared(slots=2)
    flood = [shared.add("flood") for _ in range(2)]
    shared.step()
    for _ in range(3 * MOST_PAUSES):
        shared.add("calm", tokens=1)
        shared.step()
        shared.step()
    assert [sequence.pauses for sequence in flood] == [MOST_PAUSES, MOST_PAUSES]


def test_a_sequence_that_was_paused_for_long_goes_on_beside_all_others() -> None:
    shared = Shared(slots=3)
    flood = [shared.add("flood") for _ in range(2)]
    shared.step()
    shared.scheduler.configure(1, 64, most_running=1)
    shared.step()
    assert flood[1].is_paused
    shared.step(LONGEST_PAUSE_NS - SECOND_NS)
    assert flood[1].is_paused
    shared.step(SECOND_NS)
    assert flood[1] in shared.scheduler.running
    shared.step()
    assert flood[1].pauses == 1


@pytest.mark.parametrize("tenants", [1, 2])
def test_one_that_is_paused_leaves_a_free_place_to_those_it_would_be_paused_for(tenants: int) -> None:
    shared = Shared(slots=3)
    flood = [shared.add("flood", tokens=20) for _ in range(3)]
    shared.step()
    calm = [shared.add("calm", tokens=3)]
    shared.step()
    assert flood[2].is_paused
    calm += [shared.add(f"other {number}", tokens=3) for number in range(tenants - 1)]
    shared.step()
    shared.step()
    paused_for = sum(sequence.pauses for sequence in flood)
    assert paused_for == tenants
