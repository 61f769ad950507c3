"""Who may take more of a cell, beside what the router decides with the same requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import StepCost
from python_backend.sharing.asks import LIGHT_WEIGHT
from python_backend.wire.tiers import Tier
from router.admission.allocation import Allocation
from router.admission.capacity import Capacity
from router.admission.demand import Demand, QueueEntry
from router.admission.judge import SERVED_WITH
from router.core.objective import Objective
from simulator.fleet.cell import CellPlan, compiled_shape
from simulator.fleet.shares import displaces, fits, is_open
from simulator.fleet.state import IS_SHARING, Cell, ReplicaShape, new_cell, sample
from simulator.fleet.steps import count
from tests.tiers import examples

SLOTS, KV_TOKENS, TENANTS, PATIENCE_S = 32, 20_000, 4, 3.0
Taken = tuple[Tier, int, int]  # a tier, a tenant of it, and tokens
NUMBERS = np.arange(TENANTS)
PLAN = CellPlan(
    ReplicaShape(StepCost(12.0, 0.12, 0.25, 0.05), SLOTS, 512, KV_TOKENS),
    {tier: Objective("m", tier, PATIENCE_S) for tier in Tier},
    sample(NUMBERS + 1, NUMBERS + 1, NUMBERS % 3, NUMBERS),
    [1.0], 1, 1, seed=0,
)  # fmt: skip
SHAPE = compiled_shape(PLAN)
_few = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_taken = st.tuples(st.sampled_from(Tier), st.integers(0, TENANTS - 1), st.integers(2, 4000))
_in_flight = st.lists(_taken, min_size=1, max_size=SLOTS)


@dataclass
class Answer:
    completion_tokens: int = 0


def entry(one: Taken) -> QueueEntry:
    tier, tenant, tokens = one
    demand = Demand(str(tenant), tier, 1, 1, 1, 0.0, PATIENCE_S)
    return QueueEntry(demand, Answer(), sequences=1, kv_tokens=tokens, weight=1.0, deadline_s=PATIENCE_S)


def router_with(taken: Sequence[Taken]) -> Allocation:
    made = Allocation(SERVED_WITH.tier_weights, SERVED_WITH.borrow_cap, SERVED_WITH.kv_share)
    made.resize(Capacity(1, SLOTS, KV_TOKENS, can_pause=True))
    for each in taken:
        made.take(entry(each))
        made.asked_s[each[0]] = 0.0
    made.look(0.0)
    return made


def cell_with(taken: Sequence[Taken]) -> Cell:
    made = new_cell(SHAPE, PLAN.lengths, 1, 1, 1, 1, 0)
    for slot, (tier, tenant, tokens) in enumerate(taken):
        request = made.engines.slots[0, slot]
        request.tier, request.tenant, request.prompt, request.output = tier, tenant, tokens - 1, 1
        count(made.engines, 0, slot, 1)
        made.queue.tiers[tier].asked_s = 0.0
    return made


@_few
@given(_in_flight, _taken)
def test_a_request_fits_where_the_router_says_that_it_does(taken: list[Taken], more: Taken) -> None:
    assert fits(cell_with(taken), 0, more[2]) == router_with(taken).fits(entry(more))


@_few
@given(_in_flight)
def test_a_tier_may_begin_one_more_where_the_router_lets_it(taken: list[Taken]) -> None:
    cell, router = cell_with(taken), router_with(taken)
    assert [is_open(cell, int(tier)) for tier in Tier] == [router.is_open(tier) for tier in Tier]


@_few
@given(_in_flight, _taken)
def test_others_give_way_to_a_tenant_for_whom_the_engine_would_pause_them(
    taken: list[Taken], more: Taken
) -> None:
    cell, (tier, tenant, _) = cell_with(taken), more
    expected = router_with(taken).displaces_now(entry(more), 0.0)
    assert displaces(cell, SHAPE, int(tier), tenant, 0.0) == expected


def test_a_light_tenant_is_let_in_at_once_and_one_that_can_wait_a_part_of_its_time_later() -> None:
    cell, batch = cell_with([(Tier.BATCH, 0, 100)]), int(Tier.BATCH)
    cell.engines.tenants["weight"][batch, 1] = LIGHT_WEIGHT
    assert displaces(cell, SHAPE, batch, 1, 0.0)
    assert not displaces(cell, SHAPE, batch, 2, 0.0)
    patient = SHAPE._replace(first_token_s=np.full(3, 40.0))
    assert [displaces(cell, patient, batch, 1, waited_s) for waited_s in (9.0, 11.0)] == [False, True]


def test_a_router_that_cannot_hear_of_the_others_counts_its_own_alone() -> None:
    cell = cell_with([(Tier.STANDARD, 0, 100)] * SLOTS)
    assert not fits(cell, 0, 100)
    cell.clock[IS_SHARING] = 0.0
    assert fits(cell, 0, 100)
    cell.engines.views["slots"][0] = SLOTS
    assert not fits(cell, 0, 100)
