"""A seed gives the same faults again, and no fault is forgotten."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.chaos.plan import CATALOGUE, Episode, Strike, chosen, episodes

LOAD_S = 5.0


@given(st.integers())
def test_the_same_seed_gives_the_same_episodes(seed: int) -> None:
    first, second = (list(islice(episodes(seed, chosen([]), LOAD_S, 0.3), 60)) for _ in range(2))
    assert first == second


@given(st.integers())
def test_every_round_has_every_fault_once_within_the_load_and_its_limits(seed: int) -> None:
    faults = chosen([])
    round_ = list(islice(episodes(seed, faults, LOAD_S), len(faults)))
    assert {each.name for each in round_} == CATALOGUE.keys()
    for each in round_:
        (blow,) = each.strikes
        least_s, most_s = blow.fault.holds_s
        assert 0 < blow.at_s < LOAD_S
        assert least_s <= blow.holds_s <= most_s
        assert each.over_s == blow.at_s + blow.holds_s
        assert each.may_cut == blow.fault.cuts
        assert all(0 <= blow.one_of(count) < count for count in (1, 2, 7))


@given(st.integers())
def test_faults_that_come_in_pairs_are_two_that_the_sheet_can_judge(seed: int) -> None:
    for each in islice(episodes(seed, chosen([]), LOAD_S, 1.0), 60):
        faults = [blow.fault for blow in each.strikes]
        assert len({fault.name for fault in faults}) == len(faults) <= 2
        assert {fault.name for fault in faults} != {"full-disk", "kill-router"}
        takes_all = all(fault.on_replica for fault in faults) and len(faults) == 2
        assert each.may_cut == (takes_all or any(fault.cuts for fault in faults))


def test_an_answer_with_a_key_may_only_be_lost_with_its_router_while_redis_is_away() -> None:
    def alone(*names: str) -> Episode:
        return Episode(1, tuple(Strike(CATALOGUE[name], 1.0, 2.0, 0.5) for name in names))

    assert not alone("kill-router").may_lose_kept(has_redis=True)
    assert alone("kill-router").may_lose_kept(has_redis=False)
    assert alone("kill-router", "freeze-redis").may_lose_kept(has_redis=True)
    assert not alone("drop-clients", "kill-redis").may_lose_kept(has_redis=True)
    assert not alone("freeze-router").may_lose_kept(has_redis=False)


def test_an_unknown_fault_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"no fault 'earthquake'; there are kill-triton, "):
        chosen(["kill-triton", "earthquake"])


def test_without_faults_there_are_no_episodes() -> None:
    assert list(episodes(1, [], LOAD_S)) == []
