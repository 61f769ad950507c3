"""Who is let in beside a full batch, because the engine pauses others for it."""

from __future__ import annotations

from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Demand, QueueEntry, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.queue import EqualShares


class Answer:
    completion_tokens = 0


def full_of_flood(can_pause: bool = True, slots: int = 8, patience_s: float = 2.0) -> Dispatcher:
    """All slots are one tenant's, and it wants more; forecasts are believed."""
    policy = Dispatcher(EqualShares(), OutputLengths())
    policy.resize(Capacity(1, slots, step=StepCost(5.0, 1.2, 8.0), can_pause=can_pause))
    for _ in range(40):
        entry = ask(policy, "flood", 0.0, tokens=20)
        assert isinstance(entry, QueueEntry)
        policy.first_token(entry, 0.05)
        policy.end(entry, 0.2)
    for _ in range(slots + 4):
        ask(policy, "flood", 1.0, patience_s)
    policy.hand_on(1.0)
    return policy


def ask(
    policy: Dispatcher, tenant: str, now_s: float, patience_s: float = 2.0, tokens: int = 500
) -> QueueEntry | Refused:
    demand = Demand(tenant, Tier.STANDARD, 30, tokens, 1, now_s, now_s + patience_s)
    entry = policy.admit(demand, Answer(), now_s)
    policy.hand_on(now_s)
    policy.check()
    return entry


def test_a_tenant_below_its_share_begins_at_once_beside_a_full_batch() -> None:
    policy = full_of_flood()
    assert isinstance(ask(policy, "flood", 1.1), Refused)
    calm = ask(policy, "calm", 1.1)
    assert isinstance(calm, QueueEntry)
    assert calm.is_running
    assert calm.weight == 1.0


def test_without_pauses_it_is_refused_like_all_others() -> None:
    assert isinstance(ask(full_of_flood(can_pause=False), "calm", 1.1), Refused)


def test_only_a_few_are_let_in_beside_a_full_batch_at_a_time() -> None:
    policy = full_of_flood(slots=16)
    begun = [ask(policy, f"calm {number}", 1.1) for number in range(12)]
    running = [each for each in begun if isinstance(each, QueueEntry) and each.is_running]
    assert 2 <= len(running) < len(begun)
    for each in running:
        policy.end(each, 1.2)
    assert policy.hand_on(1.3), "their places are for the others that wait"
    policy.check()


def test_who_can_wait_long_does_so_for_a_while_and_is_not_refused() -> None:
    policy = full_of_flood(patience_s=60.0)
    calm = ask(policy, "calm", 1.1, patience_s=60.0)
    assert isinstance(calm, QueueEntry)
    assert not calm.is_running
    assert calm in policy.hand_on(20.0)
    assert calm.is_running


def test_who_asks_for_little_is_let_in_however_many_of_its_answers_overlap() -> None:
    policy = full_of_flood(slots=4)
    for second in range(1, 9):
        assert isinstance(ask(policy, "flood", second + 0.1), Refused)
        calm = ask(policy, "calm", second + 0.2, tokens=16)
        assert isinstance(calm, QueueEntry)
        assert calm.is_running
        assert calm.weight > 1.0, "so that the engine pauses others for it"


def test_of_two_floods_that_come_at_once_neither_keeps_a_calm_tenants_first_request_waiting() -> None:
    """While nothing is known of costs, the second of them looks light beside the first for a while."""
    policy = Dispatcher(EqualShares(), OutputLengths())
    policy.resize(Capacity(1, 8, can_pause=True))
    floods = [ask(policy, tenant, 0.0) for tenant in ("flood", "flood-2") for _ in range(20)]
    begun = sum(isinstance(each, QueueEntry) and each.is_running for each in floods)
    assert begun == 8 + 10, "beside a full batch as many as may, of the one that looks light"
    for number in range(3):
        calm = ask(policy, "calm" if number < 2 else "calm-2", 0.01, tokens=16)
        assert isinstance(calm, QueueEntry)
        assert calm.is_running == (number != 1), "the second waits until the first is done"
