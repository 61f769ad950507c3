"""Who leaves how much to whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.allocation import Holdings, Tenant
from router.admission.capacity import Capacity
from router.admission.demand import Demand, QueueEntry
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths


@dataclass
class Answer:
    completion_tokens: int = 0


@dataclass(frozen=True)
class Weights:
    of: dict[str, float] = field(default_factory=dict)

    def weight(self, tenant: str) -> float:
        return self.of.get(tenant, 1.0)

    def slot_share(self, tenant: str) -> float:
        return 1.0


def dispatcher(slots: int = 64, weights: Weights | None = None) -> Dispatcher:
    made = Dispatcher(weights or Weights(), OutputLengths())
    made.resize(Capacity(1, slots, step=StepCost(12.0, 0.12, 0.25)))
    return made


def begun(policy: Dispatcher, tenant: str, count: int, patience_s: float = 1.0) -> list[QueueEntry]:
    """Which of so many that one offers, one after the other, begin at once."""
    handed = []
    for _ in range(count):
        demand = Demand(tenant, Tier.INTERACTIVE, 20, 1000, 1, 0.0, patience_s)
        policy.offer(demand, Answer(), 0.0)
        handed += policy.hand_on(0.0)
    policy.check()
    return handed


def holdings(*sizes: int, weight: float = 1.0) -> tuple[Holdings, list[Tenant]]:
    made, tenants = Holdings(), []
    for number, size in enumerate(sizes):
        tenant = Tenant(f"t{number}", weight)
        made.add(tenant, size)
        tenants.append(tenant)
    return made, tenants


def test_a_tenant_alone_takes_all_slots() -> None:
    assert len(begun(dispatcher(), "alone", 80)) == 64


def test_the_heaviest_tenant_leaves_headroom_that_lighter_tenants_take_at_once() -> None:
    policy = dispatcher()
    begun(policy, "calm", 16)
    flood = begun(policy, "flood", 80)
    assert 36 <= len(flood) <= 46
    assert all(entry.demand.tenant == "flood" for entry in flood)
    assert [entry.demand.tenant for entry in begun(policy, "new", 1)] == ["new"]
    assert [entry.demand.tenant for entry in begun(policy, "calm", 3)] == ["calm"] * 3


def test_less_headroom_is_left_where_requests_can_wait() -> None:
    patient = dispatcher()
    begun(patient, "calm", 16, 600.0)
    assert len(begun(patient, "flood", 80, 600.0)) >= 47


def test_a_tenant_of_more_weight_holds_more_before_it_leaves_headroom() -> None:
    equal, heavy = dispatcher(), dispatcher(weights=Weights({"paid": 4.0}))
    for policy in (equal, heavy):
        begun(policy, "free", 16)
    assert len(begun(heavy, "paid", 80)) > len(begun(equal, "paid", 80))


def test_tenants_with_equal_holdings_leave_no_headroom() -> None:
    made, tenants = holdings(4, 4, 4)
    assert [made.to_leave(tenant) for tenant in tenants] == [0.0, 0.0, 0.0]


def test_a_tenant_far_from_the_heaviest_leaves_almost_no_headroom() -> None:
    made, tenants = holdings(40, 8, 2, 2, 2, 0)
    most, middle, small, *_, none = (made.to_leave(tenant) for tenant in tenants)
    assert most > 6
    assert middle < 0.3
    assert small == none == 0.0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=60), st.floats(0.01, 1000), st.data()
)
def test_holdings_add_up_and_a_lighter_tenant_never_leaves_more_headroom(
    events: list[tuple[int, int]], weight: float, data: st.DataObject
) -> None:
    made, tenants = holdings(*([0] * 10), weight=weight)
    for number, size in events:
        tenant = tenants[number]
        gone = data.draw(st.integers(0, tenant.size)) if tenant.size else 0
        made.add(tenant, -gone)
        made.add(tenant, size)
    made.check(tenants)
    left = [made.to_leave(tenant) for tenant in sorted(tenants, key=lambda each: each.size)]
    assert left == sorted(left)
    for tenant in tenants:
        made.add(tenant, -tenant.size)
    made.check(tenants)
    assert made.to_leave(tenants[0]) == 0.0
