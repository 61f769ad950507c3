from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.evidence import Proportion, log_evidence_of_more
from router.control.releases.gates import Finding, Gate, Shown
from router.control.releases.rate_checks import check_rate, limit_at

ALPHA = 0.005  # what errors may have of the chance of a false rollback
LIMIT = math.log(1 / ALPHA)
MARGINS = (0.002, 0.04)


def hits_that_suffice(allowed: float, most: int) -> Iterator[int]:
    """After each number of requests."""
    hits = 3
    for total in range(1, most + 1):
        while hits <= total and log_evidence_of_more(Proportion(hits, total), allowed) < limit_at(
            allowed, LIMIT
        ):
            hits += 1
        yield hits


def chances_of_rollback(rate: float, allowed: float, most: int) -> list[float]:
    """That a canary which fails so often was rolled back by then: computed, not tried out."""
    chances, chance_of, gone = [], {0: 1.0}, 0.0
    for enough in hits_that_suffice(allowed, most):
        after: dict[int, float] = {}
        for hits, chance in chance_of.items():
            after[hits] = after.get(hits, 0.0) + chance * (1 - rate)
            after[hits + 1] = after.get(hits + 1, 0.0) + chance * rate
        gone += sum(chance for hits, chance in after.items() if hits >= enough)
        chance_of = {hits: chance for hits, chance in after.items() if hits < enough}
        chances.append(gone)
    return chances


@pytest.mark.parametrize("allowed", [0.0025, 0.003, 0.005, 0.01, 0.0101, 0.03])
def test_a_canary_that_fails_as_often_as_it_may_is_rolled_back_no_more_often_than_the_limit_says(
    allowed: float,
) -> None:
    assert chances_of_rollback(allowed, allowed, 1500)[-1] < ALPHA


def test_five_errors_in_a_hundred_are_found_as_soon_as_three_of_them_can_tell() -> None:
    """Beside a release that did not fail in a thousand requests, whose canary may fail in 0.3 %.

    Of 100 such canaries 95 have failed twice within 93 requests, and three times within 124. One that may
    fail in 0.3 % fails twice in 93 in more than 3 % of rollouts: nobody can act on that.
    """
    found = chances_of_rollback(0.05, 0.003, 200)
    median, late = (next(n for n, chance in enumerate(found, 1) if chance >= part) for part in (0.5, 0.95))
    print(median, late)
    assert median <= 60
    assert late <= 175
    twice = 1 - 0.997**93 - 93 * 0.003 * 0.997**92
    assert twice > 0.03


def checked(before: tuple[Proportion, Proportion], now: Proportion) -> Finding:
    steps = [before, (now, Proportion())]
    return check_rate(Gate.ERRORS, steps, MARGINS, LIMIT, is_alone=True, presumed=0.1)


def test_with_all_of_the_traffic_a_canary_shows_itself_anew() -> None:
    before = (Proportion(0, 500), Proportion(0, 500))
    assert checked(before, Proportion(0, 20)).shown is Shown.UNKNOWN
    waits = checked(before, Proportion(0, 60))
    assert (waits.shown, waits.more) == (Shown.UNKNOWN, 27)
    assert checked(before, Proportion(0, 100)).shown is Shown.WITHIN


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(100, 1000), st.integers(1, 2000), st.data())
def test_one_that_fails_more_often_alone_than_it_may_is_not_shown_to_be_as_before(
    hits: int, stable_hits: int, asked: int, total: int, data: st.DataObject
) -> None:
    before = (Proportion(hits, asked), Proportion(stable_hits, asked))
    usual = (hits + stable_hits) / (2 * asked)
    least = min(total, math.ceil(total * (usual + MARGINS[1])))
    now = Proportion(data.draw(st.integers(least, total)), total)
    assert checked(before, now).shown is not Shown.WITHIN


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_most_lenient_margin_is_one_too(is_alone: bool) -> None:
    steps = [(Proportion(0, 10), Proportion(0, 10)), (Proportion(0, 0), Proportion(0, 10))]
    found = check_rate(Gate.ERRORS, steps, (0.5, 2.4), LIMIT, is_alone=is_alone)
    assert found.shown in (Shown.UNKNOWN, Shown.WITHIN)


def test_what_the_stable_release_shows_beside_the_last_of_several_steps_counts_too() -> None:
    steps = [(Proportion(0, 400), Proportion(0, 400))] * 2
    in_last_step = Proportion(4, 400)
    well, worse = (
        check_rate(Gate.ERRORS, [*steps, (in_last_step, beside)], MARGINS, LIMIT, is_alone=True, presumed=0.1)
        for beside in (Proportion(0, 400), Proportion(40, 400))
    )
    assert well.within is not None
    assert worse.within is not None
    assert worse.within > well.within
