"""Places and cache: what fits, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.wire.tiers import Tier
from router.admission.demand import Capacity, Demand, Place
from router.admission.queue import TIER_WEIGHTS
from router.admission.room import Room


@dataclass
class Answer:
    completion_tokens: int = 0


def place(sequences: int = 1, kv: int = 0, spread: int = 0, tier: Tier = Tier.STANDARD) -> Place:
    demand = Demand("a", tier, 1, 1, sequences, 0.0, 1.0)
    return Place(demand, Answer(), sequences=sequences, kv_tokens=kv, kv_spread=spread)


def room(places: int = 20, kv_tokens: int | None = 10_000) -> Room:
    made = Room(TIER_WEIGHTS, borrow_cap=0.85, kv_share=0.9)
    made.resize(Capacity(1, places, kv_tokens))
    return made


def test_one_alone_is_kept_all_that_it_may_need_and_many_less_than_the_sum() -> None:
    made = room(kv_tokens=100_000)
    made.take(place(kv=300, spread=400))
    assert made.kv_tokens == 700
    for _ in range(15):
        made.take(place(kv=300, spread=400))
    assert made.kv_tokens == 16 * 300 + 4 * 400


def test_what_was_taken_comes_back_to_the_last_token() -> None:
    made = room()
    places = [place(2, 100 + each, each, tier) for each in range(5) for tier in Tier]
    for each in places:
        made.take(each)
        made.grow(each, 7)
    made.check(places)
    for each in places:
        made.give_back(each)
    made.check([])
    assert (made.sequences, made.kv_tokens) == (0, 0)


def test_nothing_fits_beside_what_fills_it_and_anything_fits_alone() -> None:
    made = room(places=4)
    assert made.fits(place(9, 50_000))
    made.take(place(1, 8900))
    assert not made.fits(place(1, 200))
    assert made.fits(place(1, 100))
    assert not made.fits(place(4, 0))
    assert not room(places=0).fits(place())


def test_a_guarantee_is_counted_in_places_or_cache_whichever_is_more() -> None:
    made = room()
    assert made.is_guaranteed(Tier.BATCH)
    made.take(place(1, 1000, tier=Tier.BATCH))
    assert not made.is_guaranteed(Tier.BATCH), "a tenth of the cache, though a twentieth of the places"


def test_the_last_is_kept_only_for_better_tiers_that_were_there_of_late() -> None:
    made = room(kv_tokens=None)
    made.take(place(18, tier=Tier.BATCH))
    made.look(0.0)
    assert made.is_open(Tier.BATCH)
    made.asked(Tier.STANDARD, 1.0)
    made.look(2.0)
    assert not made.is_open(Tier.BATCH)
    assert made.is_open(Tier.STANDARD)
    made.look(70.0)
    assert made.is_open(Tier.BATCH)


def test_where_other_routers_use_it_too_the_room_is_a_part_of_it() -> None:
    made = Room(TIER_WEIGHTS, borrow_cap=0.85, kv_share=0.9)
    made.resize(Capacity(1, 20, 10_000, own_places=5, own_kv_tokens=1000))
    made.take(place(1, 500))
    assert made.kv_budget == 9000  # what is too large is judged by all there is
    assert made.fits(place(4, 400))
    assert not made.fits(place(5, 0))
    assert not made.fits(place(1, 500))
    made.take(place(4, 100))
    assert made.is_full
    assert made.left_places(Tier.INTERACTIVE) == 0
