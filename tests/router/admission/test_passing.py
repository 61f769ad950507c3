"""A request that need not wait is admitted in one step, and as it would be through the queue."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.batch_cost import BatchCost
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.capacity import UNKNOWN, Capacity, fitted, fitting_tokens
from router.admission.demand import Demand, EntryState, Need, QueueEntry, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.judge import DispatchSettings
from router.admission.queue import EqualShares
from tests.router.admission.test_dispatcher_books import TENANTS, Unequal, capacities
from tests.tiers import examples


@dataclass
class Answer:
    completion_tokens: int = 0


PATIENCE_S = [0.0, 0.05, 0.5, 60.0]
COST = StepCost(5.0, 0.1, 0.2, 0.1)


def some_capacity(chance: Random) -> Capacity:
    slots, kv_tokens = chance.choice([1, 8, 8, 20]), chance.choice([None, 2000, 20_000])
    if chance.random() < 0.2:
        return Capacity(1, slots, batch=BatchCost(5.0, 0.5))
    step = None if chance.random() < 0.3 else COST
    holds_whole_answers = chance.random() < 0.2
    return Capacity(
        chance.randint(1, 2), slots, kv_tokens, 16, holds_whole_answers, step_tokens=256, step=step
    )


def some_demand(chance: Random, now_s: float) -> Demand:
    return Demand(
        tenant=chance.choice(TENANTS),
        tier=chance.choice(list(Tier)),
        prompt_tokens=chance.choice([0, 5, 200, 1500]),
        max_tokens=chance.choice([0, 1, 300, 1500]),
        sequences=chance.choice([1, 1, 1, 2, 5]),
        arrived_s=now_s,
        deadline_s=now_s + chance.choice(PATIENCE_S),
        is_strict=chance.random() < 0.2,
        rows=chance.choice([0, 40]),
    )


class Admitted:
    """One dispatcher with all that was offered to it."""

    def __init__(self, is_fast: bool) -> None:
        self.policy = Dispatcher(Unequal(), OutputLengths(2), DispatchSettings(most_waiting=12, pass_s=0.1))
        self.policy.resize(Capacity(1, 8, 20_000, 16))
        self.is_fast = is_fast
        self.entries: list[QueueEntry | Refused] = []

    def offer(self, demand: Demand, now_s: float) -> None:
        begin = self.policy.admit if self.is_fast else self.policy.offer
        entry = begin(demand, Answer(), now_s)
        self.entries.append(entry)
        if isinstance(entry, QueueEntry) and entry.state is EntryState.WAITING:
            self.policy.hand_on(now_s)

    def act(self, number: int, what: str, now_s: float) -> None:
        entry = self.entries[-1 - number % len(self.entries)] if self.entries else None
        if what == "look":
            self.policy.hand_on(now_s)
        elif isinstance(entry, QueueEntry) and what == "token" and entry.is_running:
            entry.progress.completion_tokens = min(entry.progress.completion_tokens + 90, 1500)
            self.policy.first_token(entry, now_s)
        elif isinstance(entry, QueueEntry) and what != "token":
            self.policy.end(entry, now_s, finished=what == "end")

    def seen(self, now_s: float) -> list[object]:
        """All that can be told from outside, of the last few."""
        told: list[object] = [self.policy.signals(now_s)]
        for entry in self.entries[-20:]:
            if isinstance(entry, Refused):
                told.append(entry)
            else:
                forecasts = entry.forecast_s, entry.forecast_late_s, entry.deadline_s, entry.wait
                taken = entry.size, entry.kv_tokens, entry.kv_spread, entry.cost_us, entry.remaining_us
                told.append((entry.state, entry.refusal, entry.begun_s, forecasts, taken))
        return told


@settings(deadline=None, max_examples=examples(15))
@given(st.integers(0, 1 << 32))
def test_what_passes_the_queue_is_decided_as_if_it_had_waited_in_it(seed: int) -> None:
    chance = Random(seed)
    fast, general = Admitted(is_fast=True), Admitted(is_fast=False)
    now_s = 100.0
    for _ in range(300):
        now_s += chance.choice([0.0, 0.001, 0.02, 0.06, 0.3])
        what = chance.choices(["offer", "token", "end", "cut", "look", "resize"], [10, 5, 7, 2, 1, 0.2])[0]
        demand, number = some_demand(chance, now_s), chance.randrange(20)
        capacity = some_capacity(chance) if what == "resize" else None
        for each in (fast, general):
            if capacity is not None:
                each.policy.resize(capacity)
            elif what == "offer":
                each.offer(demand, now_s)
            else:
                each.act(number, what, now_s)
            each.policy.check()
        assert fast.seen(now_s) == general.seen(now_s)


def test_what_was_open_a_moment_ago_is_looked_at_again_before_it_begins() -> None:
    policy = Dispatcher(EqualShares(), OutputLengths())
    policy.resize(Capacity(1, 20, step=COST))

    def admitted(tier: Tier, now_s: float) -> QueueEntry:
        entry = policy.admit(Demand("a", tier, 10, 10, 1, now_s, now_s + 600.0), Answer(), now_s)
        assert isinstance(entry, QueueEntry)
        return entry

    assert all(admitted(Tier.BATCH, 1.0).is_running for _ in range(17))
    policy.end(admitted(Tier.INTERACTIVE, 1.05), 1.06)
    policy.signals(1.16)  # looks at what runs, so that only the reserve is looked at again
    assert not admitted(Tier.BATCH, 1.2).is_running, "the last of the slots is kept for the better tier"
    assert admitted(Tier.INTERACTIVE, 1.2).state is EntryState.WAITING, "one that waits is not passed"
    assert [entry.demand.tier for entry in policy.hand_on(1.2)] == [Tier.INTERACTIVE]


@given(capacities | st.just(UNKNOWN), st.integers(-40, 40), st.integers(0, 4000))
def test_what_is_short_enough_counts_for_what_it_asks(capacity: Capacity, beyond: int, answer: int) -> None:
    prompt = max(fitting_tokens(capacity) + beyond, 0)
    prompt -= min(prompt, answer) if capacity.holds_whole_answers else 0
    whole = answer if capacity.holds_whole_answers else 0
    if prompt + whole <= fitting_tokens(capacity):
        need = Need(prompt, answer)
        assert fitted(need, capacity) is need
