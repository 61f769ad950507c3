from __future__ import annotations

import itertools

from loadtest.mixed_lengths import LONG, SHORT, all_at_once, steady


def test_every_group_has_one_long_answer() -> None:
    plan = all_at_once(groups=3, short_per_long=31, short_tokens=8, long_tokens=400)
    assert [request.kind for request in plan].count(LONG) == 3
    assert len(plan) == 96
    assert {request.max_tokens for request in plan if request.kind == SHORT} == {8}


def test_steady_arrivals_keep_to_their_rate() -> None:
    plan = steady(10.0, 100.0, short_per_long=31, short_tokens=8, long_tokens=400)
    assert 900 < len(plan) < 1100
    assert all(first.at_s <= second.at_s < 100 for first, second in itertools.pairwise(plan))
