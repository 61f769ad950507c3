"""Places and cache: what fits, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.wire.tiers import Tier
from router.admission.allocation import Allocation
from router.admission.capacity import Capacity
from router.admission.demand import Demand, QueueEntry
from router.admission.queue import TIER_WEIGHTS


@dataclass
class Answer:
    completion_tokens: int = 0


def entry(sequences: int = 1, kv: int = 0, spread: int = 0, tier: Tier = Tier.STANDARD) -> QueueEntry:
    demand = Demand("a", tier, 1, 1, sequences, 0.0, 1.0)
    return QueueEntry(demand, Answer(), sequences=sequences, kv_tokens=kv, kv_spread=spread)


def allocation(slots: int = 20, kv_tokens: int | None = 10_000) -> Allocation:
    made = Allocation(TIER_WEIGHTS, borrow_cap=0.85, kv_share=0.9)
    made.resize(Capacity(1, slots, kv_tokens))
    return made


def test_a_lone_request_reserves_its_worst_case_and_many_less_than_the_sum() -> None:
    made = allocation(kv_tokens=100_000)
    made.take(entry(kv=300, spread=400))
    assert made.kv_tokens == 700
    for _ in range(15):
        made.take(entry(kv=300, spread=400))
    assert made.kv_tokens == 16 * 300 + 4 * 400


def test_released_slots_and_cache_return_to_the_last_token() -> None:
    made = allocation()
    entries = [entry(2, 100 + each, each, tier) for each in range(5) for tier in Tier]
    for each in entries:
        made.take(each)
        made.grow(each, 7)
    made.check(entries)
    for each in entries:
        made.give_back(each)
    made.check([])
    assert (made.sequences, made.kv_tokens) == (0, 0)


def test_a_full_engine_fits_nothing_more_and_an_empty_one_fits_anything() -> None:
    made = allocation(slots=4)
    assert made.fits(entry(9, 50_000))
    made.take(entry(1, 8900))
    assert not made.fits(entry(1, 200))
    assert made.fits(entry(1, 100))
    assert not made.fits(entry(4, 0))
    assert not allocation(slots=0).fits(entry())


def test_a_guarantee_is_counted_in_slots_or_cache_whichever_is_more() -> None:
    made = allocation()
    assert made.is_guaranteed(Tier.BATCH)
    made.take(entry(1, 1000, tier=Tier.BATCH))
    assert not made.is_guaranteed(Tier.BATCH), "a tenth of the cache, though a twentieth of the slots"


def test_the_last_is_kept_only_for_better_tiers_that_were_there_recently() -> None:
    made = allocation(kv_tokens=None)
    made.take(entry(18, tier=Tier.BATCH))
    made.look(0.0)
    assert made.is_open(Tier.BATCH)
    made.asked_s[Tier.STANDARD] = 1.0
    made.look(2.0)
    assert not made.is_open(Tier.BATCH)
    assert made.is_open(Tier.STANDARD)
    made.look(70.0)
    assert made.is_open(Tier.BATCH)


def test_with_other_routers_the_capacity_is_this_routers_share() -> None:
    made = Allocation(TIER_WEIGHTS, borrow_cap=0.85, kv_share=0.9)
    made.resize(Capacity(1, 20, 10_000, own_slots=5, own_kv_tokens=1000))
    made.take(entry(1, 500))
    assert made.kv_budget == 9000  # what is too large is judged by all there is
    assert made.fits(entry(4, 400))
    assert not made.fits(entry(5, 0))
    assert not made.fits(entry(1, 500))
    made.take(entry(4, 100))
    assert made.is_full
    assert made.left_slots(Tier.INTERACTIVE) == 0
