"""Turns by what everybody has had: order, lift, limits and what is remembered."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.tiers import Tier
from router.admission.demand import Demand, QueueEntry
from router.admission.queue import TIER_WEIGHTS, EqualShares, FairQueue


@dataclass
class Answer:
    completion_tokens: int = 0


def entry(tenant: str, tier: Tier = Tier.STANDARD, cost_us: int = 1000) -> QueueEntry:
    return QueueEntry(Demand(tenant, tier, 1, 1, 1, 0.0, 1.0), Answer(), sequences=1, cost_us=cost_us)


def turns(most_tenants: int = 4096) -> FairQueue:
    made = FairQueue(EqualShares(), TIER_WEIGHTS, most_tenants)
    made.resize(1000)
    return made


def join(made: FairQueue, entry: QueueEntry) -> None:
    made.join(entry, made.lift(entry.demand, 1.0))


def every(_: object) -> bool:
    return True


def served(made: FairQueue, service_us: int = 1000) -> QueueEntry | None:
    """One more begins, gets its service and ends."""
    found = made.next(every, every)
    if found is not None:
        made.begin(found)
        made.charge(found, service_us)
        made.end(found)
    return found


def test_tenants_take_turns_however_many_requests_each_has_queued() -> None:
    made = turns()
    for tenant in ("a", "a", "a", "a", "b", "b"):
        join(made, entry(tenant))
    order = []
    while (each := served(made)) is not None:
        order.append(each.demand.tenant)
    assert order == ["a", "b", "a", "b", "a", "a"]
    made.check([])


def test_tiers_get_their_parts_of_the_service() -> None:
    made = turns()
    for tier in Tier:
        for _ in range(200):
            join(made, entry("a", tier))
    tiers = [each.demand.tier for each in (served(made) for _ in range(200)) if each is not None]
    assert [round(tiers.count(tier) / 200, 1) for tier in Tier] == [0.6, 0.3, 0.1]


def test_a_tenant_whose_request_does_not_fit_is_passed_over_and_keeps_its_turn() -> None:
    made = turns()
    large, small = entry("a"), entry("b")
    join(made, large)
    join(made, small)
    assert made.next(every, lambda each: each is not large) is small
    assert made.next(every, every) is large


def test_a_tenant_returning_from_idle_starts_level_with_those_who_wait() -> None:
    made = turns()
    for _ in range(50):
        join(made, entry("busy"))
    for _ in range(40):
        served(made)
    for _ in range(5):
        join(made, entry("back"))
    order = [each.demand.tenant for each in (served(made) for _ in range(6)) if each is not None]
    assert order.count("back") == 3


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(Tier), st.integers(1, 5000), st.booleans()),
        max_size=80,
    )
)
def test_the_next_request_is_of_the_least_served_tier_and_its_least_served_tenant(
    events: list[tuple[str, Tier, int, bool]],
) -> None:
    made = turns(most_tenants=3)
    for tenant, tier, cost_us, serves in events:
        join(made, entry(tenant, tier, cost_us))
        found = made.next(every, every)
        assert found is not None
        lane = made.lanes[found.demand.tier]
        assert lane.counter == min(other.counter for other in made.lanes if other.waiting)
        waiting = [each for each in lane.tenants.values() if each.queue]
        assert lane.tenants[found.demand.tenant].counter == min(each.counter for each in waiting)
        if serves:
            served(made, cost_us)
        made.check([])


def test_the_queue_does_not_remember_a_million_idle_tenants() -> None:
    made = turns(most_tenants=64)
    for number in range(5000):
        join(made, entry(f"t{number}"))
        served(made, number % 7 * 1000)
    assert all(len(lane.tenants) <= 64 for lane in made.lanes)
    assert all(len(lane.heap) <= 64 for lane in made.lanes)
