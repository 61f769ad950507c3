"""Each request counts once, as what became of it; rates are of the whole run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.percentiles import percentile
from loadtest.report.figures import (
    Spread,
    error_groups,
    figures_of,
    grouped,
    slowest,
    standings,
    summary_of,
    verdict_of,
    warnings_of,
)
from loadtest.results import LoadRun, RequestResult, Slo
from tests.loadtest.report.made_runs import BEGAN_AT, SLO, answered, failed, left, refused


def run_of(*results: RequestResult, slo: dict[str, Slo] | None = None, planned: int | None = None) -> LoadRun:
    return LoadRun("t", BEGAN_AT, 10.0, list(results), slo=SLO if slo is None else slo, planned=planned)


KINDS = st.sampled_from(["good", "late", "cut", "refused", "failed", "left"])


@settings(deadline=None)
@given(st.lists(KINDS, max_size=30))
def test_every_request_is_counted_once(kinds: list[str]) -> None:
    cut = answered()
    cut.completion_tokens = 3
    made = {
        "good": answered(),
        "late": answered(first_s=0.6),
        "cut": cut,
        "refused": refused(),
        "failed": failed(),
        "left": left(),
    }
    found = figures_of([made[kind] for kind in kinds], SLO, 10.0)
    assert found.offered == len(kinds)
    assert found.good + found.late + found.failed + found.left + found.refusals == len(kinds)
    assert found.good == kinds.count("good")
    assert found.failed == kinds.count("failed") + kinds.count("cut")
    assert found.goodput_per_s == pytest.approx(kinds.count("good") / 10)
    assert found.good_tokens == 11 * kinds.count("good")


def test_a_request_is_good_when_it_keeps_every_objective_of_its_tier() -> None:
    results = [
        answered(),
        answered(first_s=0.51),
        answered(gap_s=0.051),
        answered(first_s=1.9, tier="standard"),
        answered(first_s=1.9, gap_s=3.0, tier="standard"),  # end to end
        answered(first_s=99.0, tier="batch"),  # nothing is asked of it
    ]
    assert [figures_of([each], SLO, 1.0).good for each in results] == [1, 0, 0, 1, 0, 1]


def test_a_retried_request_is_one_request_with_two_attempts() -> None:
    second = answered(1.0)
    second.attempt = 1
    found = figures_of([refused(), second], SLO, 10.0)
    assert (found.offered, found.good, found.refusals, found.good_share) == (1, 1, 1, 1.0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_spreads_are_by_nearest_rank(values: list[float]) -> None:
    found = Spread.of([*values, None])
    ordered = sorted(values)
    assert (found.p50, found.p95, found.p99) == tuple(
        percentile(ordered, share) for share in (0.5, 0.95, 0.99)
    )
    assert (found.count, found.most) == (len(values), max(values))


def test_without_requests_there_are_no_numbers() -> None:
    found = figures_of([], {}, 0.0)
    assert found.good_share is None
    assert found.goodput_per_s == 0
    assert found.first_token_s == Spread()


def test_groups_come_in_their_order_and_then_by_tokens() -> None:
    run = run_of(answered(tenant="few", tokens=2), answered(tenant="most"), answered(tier="batch"))
    assert list(grouped(run, lambda each: each.tenant)) == ["a", "most", "few"]
    assert list(grouped(run, lambda each: each.tier, ("interactive", "batch"))) == ["interactive", "batch"]


def test_objectives_are_shown_beside_the_measurements() -> None:
    run = run_of(answered(), answered(first_s=0.6), refused())
    found = {(each.tier, each.metric): each for each in standings(run)}
    assert found["interactive", "first token"].kept_share == 0.5
    assert found["interactive", "first token"].p95_s == 0.6
    assert found["standard", "end to end"].kept_share is None


def test_the_verdict_is_by_95_of_100_of_each_tier() -> None:
    def verdict(*results: RequestResult, slo: dict[str, Slo] | None = None) -> tuple[bool | None, str]:
        run = run_of(*results, slo=slo)
        return verdict_of(run, figures_of(run.results, run.slo, run.duration_s))

    assert verdict(*[answered()] * 19, refused())[0] is True
    assert verdict(*[answered()] * 18, refused(), refused()) == (
        False,
        "Objectives missed: 90.0% of interactive requests were good; 95% are required.",
    )
    assert verdict(answered(), slo={})[0] is None
    assert verdict() == (None, "No requests were sent.")


def test_errors_that_differ_in_numbers_are_the_same() -> None:
    cut = answered()
    cut.completion_tokens = 3
    other = refused()
    other.error = '{"error": {"message": "42 requests wait"}}'
    found = error_groups([refused(), other, failed(), cut, answered(), left()])
    assert [(each.status, each.message, each.count) for each in found] == [
        (503, "… requests wait", 2),
        (0, "ServerDisconnectedError: gone", 1),
        (200, "the answer does not have the 11 tokens that were asked for", 1),
    ]
    assert found[1].request_id == "req-bad"


def test_the_slowest_requests_come_first() -> None:
    assert [each.first_token_s for each in slowest([answered(), answered(first_s=9.0), failed()])] == [
        9.0,
        0.2,
    ]


def test_a_reader_is_warned_of_what_the_numbers_do_not_show() -> None:
    late = answered()
    late.sent_s = 0.2
    run = run_of(late, planned=4)
    run.clamped = 2
    broken_off, client, clamped = warnings_of(run)
    assert broken_off == "The run was interrupted: 1 of 4 requests were sent."
    assert "The client itself was late: 1 of 100 requests was sent 200 ms" in client
    assert clamped == "2 requests were shortened to fit the model."
    assert warnings_of(run_of()) == ["There were no requests."]
    assert warnings_of(run_of(failed())) == ["No request was answered."]
    assert warnings_of(run_of(answered(), planned=1)) == []


def test_a_run_without_requests_has_a_summary() -> None:
    assert summary_of(run_of())["figures"]["offered"] == 0
