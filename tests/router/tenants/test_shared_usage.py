"""What others took of a limit, charged here."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.tenant import Limits
from router.tenants.limits import NS_PER_MIN, NS_PER_S, LimitSet
from router.tenants.shared_usage import NOTHING, Charge, Elsewhere, Others, Used
from tests.router.tenants.values import MONTH
from tests.tiers import examples


def used(
    requests: int = 0, tokens: int = 0, generation: int = 1, left: int | None = None, running: int = 0
) -> Used:
    return Used(generation, requests, tokens, left, None, running)


def test_usage_since_the_last_message_is_charged() -> None:
    others = Others()
    others.hear({"b": {"acme": used(3, 100)}})
    assert others.hear({"b": {"acme": used(5, 90)}}) == [Charge("acme", 2, -10)]
    assert others.hear({"b": {"acme": used(5, 90)}}) == []


def test_a_router_heard_for_the_first_time_sets_only_what_is_left() -> None:
    assert Others().hear({"b": {"acme": used(500, left=7)}}) == [Charge("acme", requests_left=7)]


def test_a_new_subject_of_a_known_router_is_charged_in_full() -> None:
    others = Others()
    others.hear({"b": {}})
    assert others.hear({"b": {"acme": used(4)}}) == [Charge("acme", 4)]
    assert others.hear({"b": {"acme": used(1, generation=2)}}) == [Charge("acme", 1)]


def test_a_router_that_left_is_forgotten() -> None:
    others = Others()
    others.hear({"b": {"acme": used(4, running=3, left=5)}, "c": {"acme": used(1, running=1, left=2)}})
    assert others.of("acme") == Elsewhere(2, None, 4)
    assert others.count == 2
    others.hear({"c": {"acme": used(1, running=1)}})
    assert others.of("acme") == Elsewhere(None, None, 1)
    others.hear({})
    assert others.of("acme") == NOTHING


# Several routers in one simulated time, which hear of each other every so often.


@dataclass
class Router:
    gate: LimitSet
    others: Others = field(default_factory=Others)
    granted_ns: list[int] = field(default_factory=list)

    def ask(self, now_ns: int) -> bool:
        if self.gate.refusal(0, 0, now_ns, MONTH) is not None:
            return False
        self.gate.take(0, 0)
        self.granted_ns.append(now_ns)
        return True


@dataclass
class Site:
    limits: Limits
    count: int
    period_ns: int

    def __post_init__(self) -> None:
        self.now_ns = 0
        self.routers = [Router(LimitSet("acme", self.limits, 0)) for _ in range(self.count)]
        self.board: dict[int, Used] = {}
        self.swap()

    def swap(self) -> None:
        for number, router in enumerate(self.routers):
            self.board[number] = router.gate.used(self.now_ns)
            said = {str(each): {"acme": word} for each, word in self.board.items() if each != number}
            for charge in router.others.hear(said):
                router.gate.charge(charge, self.now_ns)

    def pass_time(self, ns: int) -> None:
        until_ns = self.now_ns + ns
        while (tick_ns := (self.now_ns // self.period_ns + 1) * self.period_ns) <= until_ns:
            self.now_ns = tick_ns
            self.swap()
        self.now_ns = until_ns

    @property
    def granted(self) -> int:
        return sum(len(router.granted_ns) for router in self.routers)

    @property
    def most_in_two_periods(self) -> int:
        """That one router granted: nobody else can have heard of it meanwhile."""
        return max(
            (
                sum(begin <= at_ns <= begin + 2 * self.period_ns for at_ns in router.granted_ns)
                for router in self.routers
                for begin in router.granted_ns
            ),
            default=0,
        )


@settings(deadline=None)
@given(
    st.integers(1, 600),
    st.integers(1, 30),
    st.integers(2, 3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, NS_PER_S), st.integers(1, 8)), max_size=60),
)
def test_all_routers_grant_no_more_than_the_limit_and_what_is_not_yet_shared(
    rate: int, burst: int, count: int, events: list[tuple[int, int, int]]
) -> None:
    site = Site(Limits(requests_per_min=rate, request_burst=burst), count, NS_PER_S // 4)
    for number, pause_ns, asks in events:
        site.pass_time(pause_ns)
        for _ in range(asks):
            site.routers[number % count].ask(site.now_ns)
        for router in site.routers:
            router.gate.check()
        granted_by_one = burst + rate * site.now_ns / NS_PER_MIN
        assert site.granted <= granted_by_one + (count - 1) * site.most_in_two_periods


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(60, 600), st.integers(1, 30), st.integers(0, 120))
def test_what_an_idle_router_leaves_unused_is_available_to_the_other_at_once(
    rate: int, burst: int, seconds: int
) -> None:
    site = Site(Limits(requests_per_min=rate, request_burst=burst), 2, NS_PER_S // 4)
    alone = Router(LimitSet("acme", Limits(requests_per_min=rate, request_burst=burst), 0))
    for _ in range(seconds):
        while site.routers[0].ask(site.now_ns):
            pass
        while alone.ask(site.now_ns):
            pass
        site.pass_time(NS_PER_S)
    assert site.routers[0].granted_ns == alone.granted_ns


def test_two_routers_called_in_turn_grant_what_one_would() -> None:
    site = Site(Limits(requests_per_min=60, request_burst=10), 2, NS_PER_S // 4)
    for each in range(600):
        site.routers[each % 2].ask(site.now_ns)
        site.pass_time(NS_PER_S // 4)
    # 149.75 s of a request a second, and a burst of ten.
    assert site.granted in (159, 160)
