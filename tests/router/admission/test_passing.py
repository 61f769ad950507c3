"""A request that need not wait is admitted in one step, and as it would be through the queue."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.tiers import Tier
from router.admission.capacity import UNKNOWN, Capacity, fitted, fitting_tokens
from router.admission.demand import Demand, EntryState, Need, QueueEntry, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.judge import DispatchSettings
from router.admission.pricing import OutputLengths
from tests.router.admission.test_dispatcher_books import TENANTS, Unequal, capacities


@dataclass
class Answer:
    completion_tokens: int = 0


offers: st.SearchStrategy[dict[str, object]] = st.builds(
    dict,
    tenant=st.sampled_from(TENANTS),
    tier=st.sampled_from(Tier),
    prompt_tokens=st.sampled_from([0, 5, 200, 1500]),
    max_tokens=st.sampled_from([0, 1, 300, 1500]),
    sequences=st.sampled_from([1, 1, 1, 2, 5]),
    patience_s=st.sampled_from([0.0, 0.05, 0.5, 60.0]),
    is_strict=st.booleans(),
    rows=st.sampled_from([0, 40]),
)
events = st.tuples(
    st.sampled_from([0.0, 0.001, 0.06, 0.3, 4.0]),
    offers | capacities | st.tuples(st.integers(0, 30), st.sampled_from(["token", "end", "cut", "look"])),
)


class Admitted:
    """One dispatcher with all that was offered to it."""

    def __init__(self, is_fast: bool) -> None:
        self.policy = Dispatcher(Unequal(), OutputLengths(2), DispatchSettings(most_waiting=6, pass_s=0.1))
        self.policy.resize(Capacity(1, 4, 2000, 16))
        self.is_fast = is_fast
        self.entries: list[QueueEntry | Refused] = []

    def offer(self, demand: Demand, now_s: float) -> None:
        begin = self.policy.admit if self.is_fast else self.policy.offer
        entry = begin(demand, Answer(), now_s)
        self.entries.append(entry)
        if isinstance(entry, QueueEntry) and entry.state is EntryState.WAITING:
            self.policy.hand_on(now_s)

    def act(self, number: int, what: str, now_s: float) -> None:
        entry = self.entries[number % len(self.entries)] if self.entries else None
        if what == "look":
            self.policy.hand_on(now_s)
        elif isinstance(entry, QueueEntry) and what == "token" and entry.is_running:
            entry.progress.completion_tokens = min(entry.progress.completion_tokens + 90, 1500)
            self.policy.first_token(entry, now_s)
        elif isinstance(entry, QueueEntry) and what != "token":
            self.policy.end(entry, now_s, finished=what == "end")

    def seen(self, now_s: float) -> list[object]:
        """Everything that somebody could tell."""
        told: list[object] = [self.policy.signals(now_s)]
        for entry in self.entries:
            if isinstance(entry, Refused):
                told.append(entry)
            else:
                forecasts = entry.forecast_s, entry.forecast_late_s, entry.deadline_s, entry.wait
                taken = entry.size, entry.kv_tokens, entry.kv_spread, entry.cost_us, entry.remaining_us
                told.append((entry.state, entry.refusal, entry.begun_s, forecasts, taken))
        return told


@settings(deadline=None, max_examples=150)
@given(st.lists(events, max_size=40))
def test_what_passes_the_queue_is_decided_as_if_it_had_waited_in_it(
    happening: list[tuple[float, dict[str, object] | Capacity | tuple[int, str]]],
) -> None:
    fast, general = Admitted(is_fast=True), Admitted(is_fast=False)
    now_s = 100.0
    for later_s, event in happening:
        now_s += later_s
        for each in (fast, general):
            if isinstance(event, Capacity):
                each.policy.resize(event)
            elif isinstance(event, dict):
                fields = {name: value for name, value in event.items() if name != "patience_s"}
                deadline_s = now_s + float(str(event["patience_s"]))
                demand = Demand(arrived_s=now_s, deadline_s=deadline_s, **fields)  # type: ignore[arg-type]  # by name
                each.offer(demand, now_s)
            else:
                each.act(*event, now_s)
            each.policy.check()
        assert fast.seen(now_s) == general.seen(now_s)


@given(st.integers(0, 50_000), st.integers(0, 50_000), capacities | st.just(UNKNOWN))
def test_what_is_short_enough_counts_for_what_it_asks(
    prompt: int, completion: int, capacity: Capacity
) -> None:
    whole = completion if capacity.holds_whole_answers else 0
    if prompt + whole <= fitting_tokens(capacity):
        need = Need(prompt, completion)
        assert fitted(need, capacity) is need
