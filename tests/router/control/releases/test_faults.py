from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.releases.faults import MOST_DEATHS, Deaths, objection_to, reason_to_hold

NAMES = ("smol@2", "smol@1")
counts = st.integers(0, 5)


@pytest.mark.parametrize(
    ("canary", "stable", "holds", "objects"),
    [
        (0, 0, False, False),
        (0, 3, False, False),
        (1, 0, True, False),
        (1, 1, False, False),
        (2, 0, True, True),
        (2, 1, True, True),
        (2, 2, False, False),
    ],
)
def test_one_death_holds_a_canary_and_a_second_one_ends_its_rollout(
    canary: int, stable: int, holds: bool, objects: bool
) -> None:
    deaths = Deaths(canary, stable, "on triton-0: a process of the model died")
    assert (reason_to_hold(deaths, *NAMES) is not None) is holds
    assert (objection_to(deaths, *NAMES) is not None) is objects


@given(counts, counts)
def test_a_canary_is_never_blamed_where_the_stable_release_dies_as_often(canary: int, stable: int) -> None:
    deaths = Deaths(canary, stable)
    if canary <= stable:
        assert objection_to(deaths, *NAMES) is None
        assert reason_to_hold(deaths, *NAMES) is None
    elif canary >= MOST_DEATHS:
        assert objection_to(deaths, *NAMES) is not None


def test_deaths_are_told_with_the_last_reason_and_what_to_do() -> None:
    why = "on triton-0: a process of the model died"
    assert reason_to_hold(Deaths(1, 0, why), *NAMES) == (
        f"held: smol@2 died once, smol@1 never ({why}); "
        "`inflight release resume smol` resumes it; another crash rolls it back"
    )
    assert objection_to(Deaths(2, 1, why), *NAMES) == (
        f"smol@2 died 2 times in this rollout, smol@1 once (last: {why})"
    )
