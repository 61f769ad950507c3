"""Whatever happens in whatever order, what is taken comes back exactly once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from python_backend.costs.batch_cost import BatchCost
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Demand, EntryState, QueueEntry, Reason, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.judge import DispatchSettings
from router.admission.policy import FirstCome
from tests.tiers import examples

TENANTS = ["a", "b", "c", "d"]


@dataclass
class Answer:
    completion_tokens: int = 0


class Unequal:
    def weight(self, tenant: str) -> float:
        return {"a": 1.0, "b": 3.0, "c": 0.5}.get(tenant, 7.0)

    def slot_share(self, tenant: str) -> float:
        return 0.25 if tenant == "d" else 1.0


capacities = st.builds(
    Capacity,
    replicas=st.integers(0, 3),
    slots=st.integers(0, 9),
    kv_tokens=st.none() | st.integers(0, 4000),
    block_tokens=st.sampled_from([1, 16, 64]),
    holds_whole_answers=st.booleans(),
    step_tokens=st.integers(1, 512),
    step=st.none() | st.just(StepCost(5.0, 0.1, 0.2, 0.1)),
    batch=st.none() | st.just(BatchCost(5.0, 0.5)),
    own_slots=st.none() | st.integers(0, 9),
    own_kv_tokens=st.none() | st.integers(0, 4000),
)


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        few = DispatchSettings(most_waiting=12, pass_s=0.1)
        self.lengths = OutputLengths(most_tenants=2)
        self.policy = Dispatcher(Unequal(), self.lengths, few)
        self.policy.resize(Capacity(1, 4, 2000, 16, step=StepCost(5.0, 0.1, 0.2)))
        self.now_s = 0.0
        self.entries: list[QueueEntry] = []
        self.handed: set[QueueEntry] = set()

    @rule(
        tenant=st.sampled_from(TENANTS),
        tier=st.sampled_from(Tier),
        prompt=st.integers(0, 1500),
        most=st.integers(0, 1500),
        sequences=st.integers(1, 5),
        patience_s=st.sampled_from([0.0, 0.05, 0.5, 5.0, 60.0]),
        is_strict=st.booleans(),
    )
    def offer(
        self,
        tenant: str,
        tier: Tier,
        prompt: int,
        most: int,
        sequences: int,
        patience_s: float,
        is_strict: bool,
    ) -> None:
        demand = Demand(tenant, tier, prompt, most, sequences, self.now_s, self.now_s + patience_s, is_strict)
        answer = self.policy.offer(demand, Answer(), self.now_s)
        if isinstance(answer, Refused):
            assert answer.message
            assert (answer.retry_after_s is None) == (answer.reason is Reason.TOO_LARGE)
        else:
            assert answer.state is EntryState.WAITING
            self.entries.append(answer)

    @rule(later_s=st.sampled_from([0.0, 0.001, 0.06, 0.3, 4.0]))
    def hand_on(self, later_s: float) -> None:
        self.now_s += later_s
        for entry in self.policy.hand_on(self.now_s):
            assert entry not in self.handed, "handed on twice"
            self.handed.add(entry)
            if entry.refusal is None:
                assert entry.state is EntryState.RUNNING
                assert entry.begun_s == self.now_s
            else:
                assert entry.state is EntryState.ENDED
                assert entry.refusal.reason is Reason.TOO_LATE

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), tokens=st.integers(1, 400))
    def generate(self, data: st.DataObject, tokens: int) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        if entry.is_running:
            answer = entry.progress
            answer.completion_tokens = min(answer.completion_tokens + tokens, entry.demand.max_tokens)
            self.policy.first_token(entry, self.now_s)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), finished=st.booleans(), forgets=st.booleans())
    def end(self, data: st.DataObject, finished: bool, forgets: bool) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        self.policy.end(entry, self.now_s, finished)
        assert entry.state is EntryState.ENDED
        if forgets:  # else it may be ended once more
            self.entries.remove(entry)

    @rule(capacity=capacities)
    def resize(self, capacity: Capacity) -> None:
        self.policy.resize(capacity)

    @rule()
    def look(self) -> None:
        signals = self.policy.signals(self.now_s)
        waiting = sum(entry.state is EntryState.WAITING for entry in self.entries)
        assert sum(signals.waiting.values()) >= waiting
        assert signals.load is None or signals.load.offered >= 0
        assert all(0 <= risk <= 1 for risk in signals.risk.values())

    @invariant()
    def the_books_add_up(self) -> None:
        self.policy.check()

    def teardown(self) -> None:
        for entry in self.entries:
            self.policy.end(entry, self.now_s)
        self.policy.hand_on(self.now_s)
        self.policy.check()
        signals = self.policy.signals(self.now_s)
        assert (signals.running, signals.kv_reserved_tokens, sum(signals.waiting.values())) == (0, 0, 0)


class FirstComeBooks(Books):
    def __init__(self) -> None:
        super().__init__()
        self.policy = FirstCome(3)  # type: ignore[assignment]  # the same interface, on which all else relies


TestDispatcher = Books.TestCase
TestDispatcher.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestFirstCome = FirstComeBooks.TestCase
TestFirstCome.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(5))
def test_the_books_hold_while_lists_of_a_batch_model_give_way(seed: int) -> None:
    chance, policy = random.Random(seed), Dispatcher(Unequal(), OutputLengths())
    policy.resize(Capacity(1, 64, batch=BatchCost(5.0, 1.0, token_ms=0.1)))
    running: list[QueueEntry] = []
    for tick in range(400):
        now_s = tick / 100
        rows = chance.choice([1, 1, 1, 2048])
        tenant, sequences = f"tenant-{chance.randrange(3)}", min(rows, 64)
        demand = Demand(
            tenant, Tier.STANDARD, 12 * rows, 0, sequences, now_s, now_s + chance.choice([0.2, 60]), rows=rows
        )
        entry = policy.admit(demand, Answer(), now_s)
        if isinstance(entry, QueueEntry) and entry.is_running:
            running.append(entry)
        running += [each for each in policy.hand_on(now_s) if each.is_running]
        for each in running[:]:
            if chance.random() < 0.3:
                running.remove(each)
                if (left := each.demand.rows - each.sequences) > 0 and chance.random() < 0.8:
                    policy.give_way(each, left, now_s)
                else:
                    policy.end(each, now_s, finished=chance.random() < 0.9)
        policy.check()
