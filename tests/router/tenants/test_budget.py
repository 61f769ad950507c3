from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from router.tenants.budget import USABLE_S, lease_size
from router.tenants.limits import Allowance
from tests.router.tenants.treasuries import Books, FakeTreasury
from tests.router.tenants.values import MONTH, NOW_S, usage
from tests.tiers import examples

BUDGET = 1000
NS_PER_S = 1_000_000_000
money = st.integers(0, 10**12)


@settings(deadline=None)
@given(budget=money, spent=money, leased=money, need=money)
def test_a_lease_is_granted_in_full_or_not_at_all_and_never_beyond_the_budget(
    budget: int, spent: int, leased: int, need: int
) -> None:
    size = lease_size(budget, spent, leased, need)
    assert size == 0 or need <= size <= budget - spent - leased


@dataclass
class Router:
    """One router's side: an allowance, what it has reserved, and usage not yet delivered."""

    treasury: FakeTreasury
    allowance: Allowance = field(default_factory=lambda: Allowance("org-1", BUDGET))
    held: list[tuple[int, int]] = field(default_factory=list)
    spool: list[tuple[str, int]] = field(default_factory=list)

    def reserve(self, cost: int, now_s: float) -> None:
        now_ns = int(now_s * NS_PER_S)
        if not self.allowance.covers(cost, now_ns, MONTH):
            ask = self.allowance.ask(cost, MONTH)
            self.allowance.granted(ask, self.treasury.lease(ask, now_s), now_ns)
        if self.allowance.covers(cost, now_ns, MONTH):
            self.held.append((self.allowance.take(cost), cost))

    def settle(self, request_id: str, share: float) -> None:
        if self.held:
            lease, reserved = self.held.pop(0)
            spent = int(reserved * share)
            self.allowance.end(lease, reserved, spent)
            self.spool.append((request_id, spent))

    def deliver(self) -> None:
        self.treasury.charge([usage(request_id, cost) for request_id, cost in self.spool])
        self.spool.clear()

    def upkeep(self, now_s: float) -> None:
        ask = self.allowance.upkeep(int(now_s * NS_PER_S))
        if ask is not None and ask.give_back:
            self.treasury.give_back(ask, now_s)
        elif ask is not None:
            self.allowance.granted(ask, self.treasury.lease(ask, now_s), int(now_s * NS_PER_S))


def play(steps: list[tuple[int, int, int, float, float]], late_allowed: bool) -> None:
    books, now_s, ids = Books(), NOW_S, count()
    routers = [Router(FakeTreasury(books, f"router-{number}")) for number in range(3)]
    for who, act, cost, share, pause_s in steps:
        router = routers[who]
        now_s += pause_s
        match act:
            case 0 | 1:
                router.reserve(cost, now_s)
            case 2:
                router.settle(f"request-{next(ids)}", share)
            case 3:
                router.deliver()
            case 4:
                router.upkeep(now_s)
            case 5:  # dies; its spool is delivered by its successor, its reservations are gone
                routers[who] = Router(router.treasury, spool=router.spool)
        books.expire(now_s)
        assert books.spent + books.leased <= BUDGET + books.late
        assert late_allowed or not books.late
        for each in routers:
            each.allowance.check()


def steps(most_pause_s: float, acts: int) -> st.SearchStrategy[list[tuple[int, int, int, float, float]]]:
    step = st.tuples(
        st.integers(0, 2),
        st.integers(0, acts),
        st.integers(1, 400),
        st.floats(0, 1),
        st.floats(0, most_pause_s),
    )
    return st.lists(step, max_size=80)


@settings(deadline=None, max_examples=examples(100))
@given(steps(most_pause_s=1.0, acts=4))
def test_routers_that_keep_their_leases_never_spend_more_than_the_budget(
    done: list[tuple[int, int, int, float, float]],
) -> None:
    play(done, late_allowed=False)


@settings(deadline=None, max_examples=examples(100))
@given(steps(most_pause_s=100.0, acts=5))
def test_expired_leases_and_dead_routers_overspend_at_most_what_was_delivered_late(
    done: list[tuple[int, int, int, float, float]],
) -> None:
    play(done, late_allowed=True)


def test_a_router_stops_using_a_lease_before_another_one_may_have_it() -> None:
    """Even where their clocks are half a minute apart."""
    books = Books()
    one, other = Router(FakeTreasury(books, "one")), Router(FakeTreasury(books, "other"))
    one.reserve(BUDGET, NOW_S)
    one.settle("request-1", 0.0)
    last_use_s = NOW_S + USABLE_S
    assert not one.allowance.covers(1, int(last_use_s * NS_PER_S), MONTH)
    other.reserve(BUDGET, last_use_s + 30)
    assert not other.held
    other.reserve(BUDGET, last_use_s + 41)
    assert other.held


def test_a_budget_can_be_fully_spent_by_several_routers() -> None:
    books, ids = Books(), count()
    routers = [Router(FakeTreasury(books, f"router-{number}")) for number in range(3)]
    for turn in range(200):
        router = routers[turn % 3]
        router.reserve(10, NOW_S)
        router.settle(f"request-{next(ids)}", 1.0)
        router.deliver()
    assert books.spent >= BUDGET - 3 * 10
    assert books.spent + books.leased <= BUDGET
