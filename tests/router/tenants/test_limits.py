from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.tenant import Limits
from router.tenants.limits import NS_PER_MIN, NS_PER_S, Bucket, Limit, LimitSet, Refusal, longer
from tests.router.tenants.values import MONTH
from tests.tiers import examples


def test_a_full_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = Bucket(60, 10, 0)
    assert bucket.wait_ns(10, 0) == 0
    bucket.take(10)
    assert bucket.wait_ns(1, 0) == NS_PER_S
    assert bucket.wait_ns(1, NS_PER_S) == 0
    assert bucket.wait_ns(10, NS_PER_S) == 9 * NS_PER_S


def test_an_amount_that_never_fits_is_refused_for_good() -> None:
    assert Bucket(60, 10, 0).wait_ns(11, 0) is None
    empty = Bucket(0, 1, 0)
    empty.take(1)
    assert empty.wait_ns(1, NS_PER_MIN) is None


@settings(deadline=None)
@given(
    rate=st.integers(1, 10**7),
    burst=st.integers(1, 10**7),
    taken=st.integers(0, 10**7),
    amount=st.integers(1, 10**7),
)
def test_the_wait_for_a_bucket_is_exact_to_the_nanosecond(
    rate: int, burst: int, taken: int, amount: int
) -> None:
    bucket = Bucket(rate, burst, 0)
    bucket.take(taken)
    wait_ns = bucket.wait_ns(amount, 0)
    if wait_ns is None:
        assert amount > burst
    elif wait_ns:
        assert bucket.wait_ns(amount, wait_ns - 1) == 1
        assert bucket.wait_ns(amount, wait_ns) == 0


def test_a_clock_that_stands_still_or_goes_back_refills_nothing() -> None:
    bucket = Bucket(60, 10, NS_PER_MIN)
    bucket.take(10)
    assert bucket.wait_ns(1, 0) == NS_PER_S
    assert bucket.wait_ns(1, NS_PER_MIN) == NS_PER_S


def test_a_debt_delays_the_next_request() -> None:
    bucket = Bucket(60, 10, 0)
    bucket.take(10)
    bucket.take(5)
    assert bucket.wait_ns(1, 0) == 6 * NS_PER_S


def test_a_refund_never_overfills_a_bucket() -> None:
    bucket = Bucket(60, 10, 0)
    bucket.take(5)
    bucket.wait_ns(0, NS_PER_MIN)
    bucket.take(-5)
    bucket.check()
    assert bucket.wait_ns(10, NS_PER_MIN) == 0


def test_a_change_of_limits_refills_no_bucket() -> None:
    gate = LimitSet("org-1", Limits(tokens_per_min=60, token_burst=10), 0)
    gate.take(10, 0)
    gate.configure(Limits(tokens_per_min=120, token_burst=100), 0)
    refusal = gate.refusal(1, 0, 0, MONTH)
    assert refusal == Refusal(Limit.TOKENS, "org-1", NS_PER_S // 2)
    gate.configure(Limits(), 0)
    assert gate.refusal(10**9, 0, 0, MONTH) is None


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(requests_per_min=1), Limit.REQUESTS),
        (Limits(tokens_per_min=7), Limit.TOKENS),
        (Limits(concurrent_requests=1), Limit.CONCURRENCY),
    ],
)
def test_each_limit_refuses_by_its_name(limits: Limits, limit: Limit) -> None:
    gate = LimitSet("key-1", limits, 0)
    assert gate.refusal(7, 0, 0, MONTH) is None
    gate.take(7, 0)
    refusal = gate.refusal(7, 0, 0, MONTH)
    assert refusal is not None
    assert (refusal.limit, refusal.subject) == (limit, "key-1")
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s > 0


def test_of_several_limits_the_longest_wait_is_reported() -> None:
    short, long = Refusal(Limit.REQUESTS, "a", 5), Refusal(Limit.TOKENS, "b", 9)
    never = Refusal(Limit.TOKENS, "c", None)
    assert longer(short, long) is longer(long, short) is long
    assert longer(never, long) is longer(long, never) is never
    assert longer(None, short) is longer(short, None) is short
    assert never.retry_after_s is None


@settings(deadline=None, max_examples=examples(75))
@given(
    rate=st.integers(1, 1000),
    burst=st.integers(1, 200),
    steps=st.lists(
        st.tuples(st.integers(0, 30 * NS_PER_S), st.integers(1, 200), st.integers(0, 3), st.floats(0, 1)),
        max_size=60,
    ),
)
def test_no_interleaving_is_granted_more_than_burst_and_rate_allow(
    rate: int, burst: int, steps: list[tuple[int, int, int, float]]
) -> None:
    """What is granted and not given back, counted from any moment on, stays within the bucket's promise."""
    gate = LimitSet("org-1", Limits(tokens_per_min=rate, token_burst=burst), 0)
    now_ns, held = 0, list[int]()
    net: list[tuple[int, int]] = []  # when, and tokens taken (or given back, negative)
    for pause_ns, amount, act, share in steps:
        now_ns += pause_ns
        if act < 2 and gate.refusal(amount, 0, now_ns, MONTH) is None:
            gate.take(amount, 0)
            held.append(amount)
            net.append((now_ns, amount))
            _within_promise(net, rate, burst)
        elif act == 2 and held:
            reserved = held.pop(int(share * (len(held) - 1)))
            back = reserved - int(reserved * share)
            gate.end(0, back)
            net.append((now_ns, -back))
        gate.check()
        assert gate.running == len(held)
    for reserved in held:
        gate.end(1, reserved)
    assert gate.running == 0


def _within_promise(net: list[tuple[int, int]], rate: int, burst: int) -> None:
    now_ns = net[-1][0]
    taken = 0
    for since_ns, amount in reversed(net):
        taken += amount
        assert taken * NS_PER_MIN <= burst * NS_PER_MIN + rate * (now_ns - since_ns)
