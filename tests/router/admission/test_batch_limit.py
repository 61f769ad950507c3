"""What admission promises of batch models: 95 of 100 in time at any rate, and little capacity lost for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.batch_cost import BatchCost
from python_backend.wire.tiers import Tier
from router.admission.batch_limit import BatchLimit, in_flight_s
from router.admission.capacity import Capacity
from router.admission.demand import Demand
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.queue import EqualShares
from tests.router.admission.simulated_batches import Asked, BatchModel, Outcome, capacity_per_s, played
from tests.tiers import few

# On two cores, and where a batch costs little more than its first row.
SLOW, FLAT = BatchCost(8.5, 1.0, token_ms=0.33), BatchCost(20.0, 3.0)
OBJECTIVE_S = 0.2
SLOTS = 128


@dataclass
class Answered:
    completion_tokens: int = 0


def policy(cost: BatchCost, slots: int = SLOTS) -> Dispatcher:
    made = Dispatcher(EqualShares(), OutputLengths())
    made.resize(Capacity(1, slots, batch=cost))
    return made


def at(times: float, model: BatchModel, believed: BatchCost | None = None, tenants: int = 1) -> Outcome:
    per_s = times * capacity_per_s(model.cost, OBJECTIVE_S)
    asked = Asked(per_s, OBJECTIVE_S, seconds=14 if times > 1 else 20, tenants=tenants)
    return played(policy(believed or model.cost), model, asked)


@pytest.mark.parametrize("times", few([0.5, 1.0, 2.0, 5.0], [1.0, 5.0]))
@pytest.mark.parametrize("cost", [SLOW, FLAT])
def test_the_objective_of_a_batch_model_is_kept_at_every_rate(cost: BatchCost, times: float) -> None:
    noise = 0.2
    found = at(times, BatchModel(cost, noise=noise, delay_s=0.005 if times < 1 else 0.0), tenants=5)
    assert found.quantile(0.95) <= OBJECTIVE_S
    done = capacity_per_s(cost, OBJECTIVE_S) / exp(noise**2 / 2)  # by the mean of a lognormal
    assert found.good_per_s(OBJECTIVE_S) >= 0.85 * min(times, 1.0) * done


@pytest.mark.parametrize("times", [1.0, 3.0])
@pytest.mark.parametrize("wrong", few([0.3, 0.6, 1.5]))
def test_a_cost_that_was_learned_wrong_is_made_up_for_by_what_requests_took(
    times: float, wrong: float
) -> None:
    believed = BatchCost(wrong * SLOW.base_ms, wrong * SLOW.row_ms, token_ms=wrong * SLOW.token_ms)
    found = at(times, BatchModel(SLOW), believed)
    assert found.quantile(0.95) <= OBJECTIVE_S
    assert found.good_per_s(OBJECTIVE_S) >= 0.8 * min(times, 1.0) * capacity_per_s(SLOW, OBJECTIVE_S)


def test_batches_that_are_held_up_now_and_then_are_allowed_for() -> None:
    found = at(2.0, BatchModel(SLOW, noise=0.3, hiccup_every=40))
    assert found.quantile(0.95) <= OBJECTIVE_S


def test_texts_of_very_different_lengths_are_counted_by_their_tokens() -> None:
    def tokens(chance: random.Random) -> int:
        return 200 if chance.random() < 0.1 else 8

    asked = Asked(2 * capacity_per_s(SLOW, OBJECTIVE_S, tokens=27), OBJECTIVE_S, seconds=14, tokens=tokens)
    found = played(policy(SLOW), BatchModel(SLOW), asked)
    assert found.quantile(0.95) <= OBJECTIVE_S


def test_without_a_deadline_that_binds_all_slots_are_used() -> None:
    limit, capacity = BatchLimit(), Capacity(1, SLOTS, batch=SLOW)
    assert limit.rows(capacity, 0.0) == SLOTS
    limit.asked(Tier.BATCH, 600.0, 1, 12, 0.0)
    assert limit.rows(capacity, 1.0) == SLOTS
    limit.asked(Tier.STANDARD, OBJECTIVE_S, 1, 12, 2.0)
    assert limit.rows(capacity, 3.0) < SLOTS
    assert limit.rows(capacity, 100.0) == SLOTS  # nobody has asked for that of late


def test_a_new_cost_does_not_lift_the_limit() -> None:
    made = policy(SLOW)
    for number in range(SLOTS):
        at_s = number / 10_000
        demand = Demand("a", Tier.STANDARD, 12, 0, 1, at_s, at_s + OBJECTIVE_S, rows=1)
        made.admit(demand, Answered(), at_s)
    before = made.signals(0.1).running
    made.resize(Capacity(1, SLOTS, batch=replace(SLOW, base_ms=8.6)))
    made.hand_on(0.02)
    assert before < SLOTS / 2
    assert made.signals(0.1).running <= before


capacities = st.builds(
    Capacity,
    st.integers(1, 8),
    st.integers(8, 2000),
    batch=st.builds(BatchCost, st.floats(0, 100), st.floats(0, 50), token_ms=st.floats(0, 2)),
)


@settings(deadline=None)
@given(capacities, st.floats(0.001, 60), st.integers(1, 64), st.integers(0, 512))
def test_rows_within_the_limit_are_computed_in_time(
    capacity: Capacity, patience_s: float, rows: int, tokens: int
) -> None:
    limit = BatchLimit()
    for _ in range(500):
        limit.asked(Tier.STANDARD, patience_s, rows, rows * tokens, 0.0)
    found = limit.rows(capacity, 0.0)
    assert 1 <= found <= capacity.slots
    assert limit.rows(replace(capacity, replicas=2 * capacity.replicas), 0.0) >= found
    assert capacity.batch is not None
    if found > 2 * capacity.replicas:
        taken_s = in_flight_s(capacity.batch, found / capacity.replicas, found / capacity.replicas * tokens)
        assert limit.factor * taken_s <= patience_s


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, SLOTS)), max_size=300))
def test_the_factor_stays_within_its_bounds_whatever_requests_took(took: list[tuple[float, int]]) -> None:
    limit, capacity = BatchLimit(), Capacity(1, SLOTS, batch=SLOW)
    for took_s, rows in took:
        limit.learn(capacity, took_s, rows, 12 * rows)
    assert 0.2 - 1e-9 <= limit.factor <= 5.0 + 1e-9
