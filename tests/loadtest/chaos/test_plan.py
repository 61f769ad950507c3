"""A seed gives the same faults again, and no fault is forgotten."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.chaos.plan import CATALOGUE, chosen, episodes

LOAD_S = 5.0


@given(st.integers())
def test_the_same_seed_gives_the_same_episodes(seed: int) -> None:
    first, second = (list(islice(episodes(seed, chosen([]), LOAD_S), 60)) for _ in range(2))
    assert first == second


@given(st.integers())
def test_every_round_has_every_fault_once_within_the_load_and_its_limits(seed: int) -> None:
    faults = chosen([])
    round_ = list(islice(episodes(seed, faults, LOAD_S), len(faults)))
    assert {each.fault.name for each in round_} == CATALOGUE.keys()
    for each in round_:
        least_s, most_s = each.fault.holds_s
        assert 0 < each.at_s < LOAD_S
        assert least_s <= each.holds_s <= most_s
        assert all(0 <= each.one_of(count) < count for count in (1, 2, 7))


def test_an_unknown_fault_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"no fault 'earthquake'; there are kill-triton, "):
        chosen(["kill-triton", "earthquake"])


def test_without_faults_there_are_no_episodes() -> None:
    assert list(episodes(1, [], LOAD_S)) == []
