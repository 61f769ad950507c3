from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.tenant import Caller, Limits, Price
from router.tenants.budget import LeaseAnswer
from router.tenants.ledger import Ledger, Reservation, cost_of, must_ask_the_store
from router.tenants.limits import NS_PER_MIN, NS_PER_S, Limit, Refusal
from tests.router.tenants.values import MONTH, caller

amounts = st.integers(0, 10**9)


@settings(deadline=None)
@given(amounts, amounts, amounts, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_cost_is_exact_and_rounded_up_once(
    prompt: int, cached: int, completion: int, fresh_tokens: int, cached_tokens: int, completion_tokens: int
) -> None:
    price = Price("smol", prompt, cached, completion)
    exact = Fraction(
        fresh_tokens * prompt + cached_tokens * cached + completion_tokens * completion, 1_000_000
    )
    cost = cost_of(price, fresh_tokens + cached_tokens, cached_tokens, completion_tokens)
    assert 0 <= cost - exact < 1


def test_a_million_tokens_cost_the_price() -> None:
    price = Price("smol", 150_000, 75_000, 600_000)
    assert cost_of(price, 1_000_000, 0, 0) == 150_000
    assert cost_of(price, 1_000_000, 1_000_000, 0) == 75_000
    assert cost_of(price, 0, 0, 1_000_000) == 600_000
    assert cost_of(price, 0, 0, 0) == 0
    assert cost_of(None, 1_000_000, 0, 0) == 0


def granted(ledger: Ledger, who: Caller, tokens: int, now_ns: int = 0, cost: int = 0) -> Reservation:
    answer = ledger.reserve(who, tokens, cost, now_ns, MONTH)
    assert isinstance(answer, Reservation), answer
    return answer


def refused(ledger: Ledger, who: Caller, tokens: int, now_ns: int = 0, cost: int = 0) -> Refusal:
    answer = ledger.reserve(who, tokens, cost, now_ns, MONTH)
    assert isinstance(answer, Refusal)
    return answer


def test_a_reservation_takes_all_limits_or_none() -> None:
    """The organisation's limit stands in the way: the key's bucket must not have been touched."""
    ledger = Ledger()
    who = caller(Limits(requests_per_min=2), Limits(tokens_per_min=100))
    for _ in range(10):
        assert refused(ledger, who, 101).limit is Limit.TOKENS
    granted(ledger, who, 50)
    granted(ledger, who, 50)
    assert refused(ledger, who, 0).limit is Limit.REQUESTS
    ledger.check()


def test_keys_of_one_organisation_share_its_limits_and_not_their_own() -> None:
    ledger = Ledger()
    whole, own = Limits(tokens_per_min=150), Limits(tokens_per_min=100)
    one, two = caller(own, whole, key_id="key-1"), caller(own, whole, key_id="key-2")
    granted(ledger, one, 100)
    assert refused(ledger, one, 1).subject == "key-1"
    assert refused(ledger, two, 60).subject == "org-1"
    granted(ledger, two, 50)


def test_settling_for_less_refunds_and_for_more_delays_the_next_request() -> None:
    ledger = Ledger()
    who = caller(organisation_limits=Limits(tokens_per_min=60))
    granted(ledger, who, 60).settle(10, 0)
    granted(ledger, who, 50).settle(80, 0)
    assert refused(ledger, who, 1).wait_ns == 31 * NS_PER_S
    granted(ledger, who, 1, now_ns=31 * NS_PER_S)


def test_a_cancelled_request_counts_for_nothing() -> None:
    ledger = Ledger()
    who = caller(Limits(requests_per_min=1, tokens_per_min=10, concurrent_requests=1))
    for _ in range(5):
        granted(ledger, who, 10).cancel()
    granted(ledger, who, 10).settle(10, 0)
    assert refused(ledger, who, 0).limit is Limit.REQUESTS


def test_a_reservation_ends_once_whatever_is_called_on_it_after() -> None:
    ledger = Ledger()
    who = caller(Limits(concurrent_requests=2, tokens_per_min=100))
    reservation = granted(ledger, who, 50)
    reservation.settle(50, 0)
    reservation.settle(0, 0)
    reservation.cancel()
    assert not reservation.is_open
    assert ledger.running("key-1") == ledger.running("org-1") == 0
    assert refused(ledger, who, 51).limit is Limit.TOKENS
    ledger.check()


def test_new_limits_hold_from_the_next_request_on() -> None:
    ledger = Ledger()
    granted(ledger, caller(), 10**9)
    who = caller(Limits(concurrent_requests=1))
    assert refused(ledger, who, 1).limit is Limit.CONCURRENCY
    granted(ledger, caller(Limits(concurrent_requests=2)), 1)


def test_a_hard_budget_needs_a_lease_and_spends_only_from_it() -> None:
    ledger = Ledger()
    who = caller(organisation_limits=Limits(monthly_budget=1000))
    answer = refused(ledger, who, 1, cost=100)
    assert must_ask_the_store(answer)
    (ask,) = ledger.asks_for(who, 100, 0, MONTH)
    assert (ask.subject, ask.month, ask.budget, ask.need) == ("org-1", MONTH, 1000, 100)
    ledger.granted(ask, LeaseAnswer(150, continued=False), 0)
    reservation = granted(ledger, who, 1, cost=100)
    assert must_ask_the_store(refused(ledger, who, 1, cost=100))
    reservation.settle(1, 40)
    granted(ledger, who, 1, cost=110).cancel()
    (ask,) = ledger.asks_for(who, 200, 0, MONTH)
    assert ask.need == 90
    ledger.granted(ask, LeaseAnswer(0, continued=True), 0)
    assert refused(ledger, who, 1, cost=200).limit is Limit.BUDGET
    assert ledger.asks_for(who, 200, 0, MONTH) == []
    granted(ledger, who, 1, cost=110)


def test_an_idle_caller_is_forgotten_once_nothing_is_owed_either_way() -> None:
    ledger = Ledger()
    idle, busy, limited = (
        caller(Limits(tokens_per_min=each), organisation_id=f"org-{each}", key_id=f"key-{each}")
        for each in (60, 61, 62)
    )
    granted(ledger, idle, 60).settle(60, 0)
    running = granted(ledger, busy, 0)
    granted(ledger, limited, 62).settle(124, 0)
    assert ledger.upkeep(now_ns=NS_PER_MIN) == []
    assert len(ledger) == 3  # both of `busy`, and the key of `limited`, which is in debt
    assert refused(ledger, limited, 1, now_ns=NS_PER_MIN).limit is Limit.TOKENS
    running.settle(0, 0)
    ledger.upkeep(now_ns=3 * NS_PER_MIN)
    assert len(ledger) == 0
    granted(ledger, idle, 60, now_ns=3 * NS_PER_MIN)
    assert refused(ledger, idle, 1, now_ns=3 * NS_PER_MIN).limit is Limit.TOKENS


def test_a_soft_budget_refuses_no_request() -> None:
    ledger = Ledger()
    granted(ledger, caller(organisation_limits=Limits(monthly_budget=1, budget_is_hard=False)), 1, cost=10**9)


def test_a_lease_is_not_used_in_another_month_nor_after_its_time() -> None:
    ledger = Ledger()
    who = caller(organisation_limits=Limits(monthly_budget=1000))
    refused(ledger, who, 1, cost=10)
    (ask,) = ledger.asks_for(who, 10, 0, MONTH)
    ledger.granted(ask, LeaseAnswer(100, continued=False), 0)
    assert must_ask_the_store(ledger.reserve(who, 1, 10, 0, "2026-12"))
    assert must_ask_the_store(refused(ledger, who, 1, 80 * NS_PER_S, cost=10))
    granted(ledger, who, 1, 79 * NS_PER_S, cost=10)


def test_leases_in_use_are_extended_and_idle_ones_are_returned() -> None:
    ledger = Ledger()
    who = caller(organisation_limits=Limits(monthly_budget=1000))
    refused(ledger, who, 1, cost=10)
    (ask,) = ledger.asks_for(who, 10, 0, MONTH)
    ledger.granted(ask, LeaseAnswer(100, continued=False), 0)
    reservation = granted(ledger, who, 1, cost=10)
    assert ledger.upkeep(NS_PER_S) == []
    for minute in (1, 2):
        (ask,) = ledger.upkeep(minute * NS_PER_MIN)
        assert (ask.need, ask.give_back) == (0, 0)
        ledger.granted(ask, LeaseAnswer(0, continued=True), minute * NS_PER_MIN)
    reservation.settle(1, 4)
    (ask,) = ledger.upkeep(3 * NS_PER_MIN)
    assert ask.give_back == 96
    assert must_ask_the_store(refused(ledger, who, 1, 3 * NS_PER_MIN, cost=1))
    assert ledger.upkeep(4 * NS_PER_MIN) == []


def test_a_reservation_from_an_older_lease_is_not_returned_to_a_newer_one() -> None:
    ledger = Ledger()
    who = caller(organisation_limits=Limits(monthly_budget=1000))
    refused(ledger, who, 1, cost=10)
    (ask,) = ledger.asks_for(who, 10, 0, MONTH)
    ledger.granted(ask, LeaseAnswer(100, continued=False), 0)
    reservation = granted(ledger, who, 1, cost=100)
    ledger.granted(ask, LeaseAnswer(10, continued=False), NS_PER_MIN)
    reservation.cancel()
    assert must_ask_the_store(refused(ledger, who, 1, NS_PER_MIN, cost=11))
    ledger.check()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, NS_PER_S), st.integers(0, 60), st.integers(0, 90)),
        max_size=80,
    )
)
def test_all_limits_hold_and_every_reservation_returns_under_random_requests(
    steps: list[tuple[int, int, int, int]],
) -> None:
    ledger, now_ns, held = Ledger(), 0, list[Reservation]()
    own = Limits(requests_per_min=30, request_burst=5, concurrent_requests=3)
    whole = Limits(tokens_per_min=600, token_burst=100, concurrent_requests=4)
    callers = [caller(own, whole, key_id=f"key-{number}") for number in range(2)]
    for act, pause_ns, tokens, actual in steps:
        now_ns += pause_ns
        if act < 2:
            answer = ledger.reserve(callers[act], tokens, 0, now_ns, MONTH)
            if isinstance(answer, Reservation):
                held.append(answer)
        elif held:
            reservation = held.pop(0)
            reservation.settle(actual, 0) if act == 2 else reservation.cancel()
        ledger.check()
        assert ledger.running("org-1") == len(held) <= 4
        assert max(ledger.running("key-0"), ledger.running("key-1")) <= 3
    for reservation in held:
        reservation.cancel()
    assert ledger.running("org-1") == 0
