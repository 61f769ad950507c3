"""The plain policies to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Demand, QueueEntry
from router.admission.policy import EVERYTHING, FirstCome


@dataclass
class Answer:
    completion_tokens: int = 0


def offered(policy: FirstCome, sequences: int = 1, tier: Tier = Tier.STANDARD) -> QueueEntry:
    entry = policy.offer(Demand("a", tier, 10, 10, sequences, 0.0, 0.0), Answer(), 0.0)
    assert isinstance(entry, QueueEntry)
    return entry


def test_as_many_requests_run_as_the_cap_allows_in_arrival_order() -> None:
    policy = FirstCome(2)
    policy.resize(Capacity(1, 64))
    first, second, third = offered(policy), offered(policy), offered(policy, tier=Tier.INTERACTIVE)
    assert policy.hand_on(0.0) == [first, second]
    policy.end(first, 1.0)
    policy.end(first, 1.0)
    assert policy.hand_on(1.0) == [third]
    policy.check()


def test_a_cap_of_zero_means_as_many_as_the_engine_has_slots() -> None:
    policy = FirstCome(0)
    entries = [offered(policy) for _ in range(5)]
    assert policy.hand_on(0.0) == []
    policy.resize(Capacity(1, 3))
    assert policy.hand_on(0.0) == entries[:3]


def test_an_unlimited_cap_admits_every_request_at_once() -> None:
    policy = FirstCome(EVERYTHING)
    entries = [offered(policy, 50) for _ in range(5)]
    assert policy.hand_on(0.0) == entries


def test_a_request_wider_than_the_cap_runs_alone() -> None:
    policy = FirstCome(4)
    policy.resize(Capacity(1, 64))
    small, wide = offered(policy), offered(policy, 9)
    assert policy.hand_on(0.0) == [small]
    policy.end(small, 1.0)
    assert policy.hand_on(1.0) == [wide]
    assert policy.signals(1.0).running == 1
