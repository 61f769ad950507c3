"""What counts as good, as refused, as failed, and as fair."""

from __future__ import annotations

import pytest

from benchmarks.objectives.judging import is_good, judge, recovery_s, water_filled
from loadtest.results import RequestResult
from python_backend.wire.tiers import Tier
from router.core.objective import Objective

OBJECTIVES = {tier.label: Objective("m", tier, first_token_s=1.0, inter_token_s=0.1) for tier in Tier}


def answered(
    at_s: float = 0.0, first_s: float = 0.5, gap_s: float = 0.05, tenant: str = "a"
) -> RequestResult:
    found = RequestResult("trace", at_s, tenant, status=200, first_token_s=first_s, asked_tokens=11)
    found.ended_s = first_s + 10 * gap_s
    found.gaps_s = [gap_s] * 10
    found.prompt_tokens, found.completion_tokens = 10, 11
    return found


def refused(at_s: float = 0.0, retry_after_s: float = 2.0, tenant: str = "a") -> RequestResult:
    found = RequestResult("trace", at_s, tenant, status=503, ended_s=0.002, error="busy", asked_tokens=11)
    found.prompt_tokens, found.retry_after_s = 10, retry_after_s
    return found


def test_an_answer_is_good_when_whole_and_within_both_objectives() -> None:
    assert is_good(answered(), OBJECTIVES)
    assert not is_good(answered(first_s=1.1), OBJECTIVES)
    assert not is_good(answered(gap_s=0.11), OBJECTIVES)
    assert not is_good(refused(), OBJECTIVES)
    cut_off = answered()
    cut_off.completion_tokens = 7
    assert not is_good(cut_off, OBJECTIVES)


def test_rates_count_what_ends_within_the_window() -> None:
    outcomes = [answered(at_s) for at_s in (0.0, 1.0, 2.0, 3.0, 9.5)]
    found = judge(outcomes, OBJECTIVES, (1.0, 10.0), lambda prompt, output: 1.0)
    assert found.good_per_s == pytest.approx(4 / 9)  # the first ends just then, the last too late
    assert found.offered_per_s == pytest.approx(4 / 9)


def test_a_refusal_is_a_failure_only_without_a_retry_time() -> None:
    nameless = refused(3.0)
    nameless.retry_after_s = None
    outcomes = [refused(1.0, 1.6), refused(2.0, 2.4), nameless, answered(2.0)]
    found = judge(outcomes, OBJECTIVES, (0.0, 5.0), lambda prompt, output: 1.0)
    assert (found.refused, sum(found.failed.values())) == (2, 1)
    assert (found.retry_after_s.least, found.retry_after_s.most) == (1.6, 2.4)


def test_a_light_tenant_gets_all_it_wants_and_the_rest_is_shared_equally() -> None:
    assert water_filled({"a": 1.0, "b": 10.0, "c": 10.0}, 9.0) == {"a": 1.0, "b": 4.0, "c": 4.0}
    outcomes = [answered(number / 10, tenant="a") for number in range(10)]
    outcomes += [answered(number / 10, tenant="b") for number in range(5)]
    outcomes += [refused(number / 10, tenant="b") for number in range(5)]
    found = judge(outcomes, OBJECTIVES, (0.0, 5.0), lambda prompt, output: 1.0)
    assert found.least_served == pytest.approx(5 / 7.5)
    assert found.fairness < 1


def test_recovery_ends_with_the_last_missed_request() -> None:
    outcomes = [answered(0.0), refused(5.2), refused(7.5), answered(9.0)]
    assert recovery_s(outcomes, OBJECTIVES, 5.0) == pytest.approx(1.5)
