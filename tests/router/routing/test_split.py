from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing.split import Arm, Split, place_of

keys = st.text(max_size=40)


def canary_split(salt: str, stable: str, canary: str, weight: float) -> Split:
    return Split(salt, (Arm(canary, weight), Arm(stable, 1 - weight)))


@given(keys, st.floats(0, 1), st.floats(0, 1))
def test_a_key_in_the_canary_stays_in_it_while_its_weight_grows(key: str, a: float, b: float) -> None:
    small, large = sorted((a, b))
    before = canary_split("s", "stable", "canary", small).choose(key)
    after = canary_split("s", "stable", "canary", large).choose(key)
    assert (before, after) != ("canary", "stable")


@given(keys, st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(any))
def test_a_release_without_weight_answers_no_request(key: str, shares: list[int]) -> None:
    arms = tuple(Arm(f"r{index}", share / sum(shares)) for index, share in enumerate(shares))
    chosen = Split("s", arms).choose(key)
    assert {arm.release: arm.weight for arm in arms}[chosen] > 0


@pytest.mark.parametrize("weight", [0.01, 0.1, 0.25, 0.5])
def test_a_releases_share_of_keys_is_its_weight_within_the_binomial_interval(weight: float) -> None:
    """99 % of the binomial's, over 20,000 keys; the places of keys are fixed, so this cannot flicker."""
    count = 20_000
    split = canary_split("release-7", "stable", "canary", weight)
    hits = sum(split.choose(f"tenant-{number}") == "canary" for number in range(count))
    assert abs(hits - count * weight) <= 2.576 * math.sqrt(count * weight * (1 - weight))


def test_hash_positions_are_fixed_and_differ_between_splits() -> None:
    assert place_of("a", "ann") == 0.07656571816479285
    assert place_of("b", "ann") != place_of("a", "ann")


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ((), "one or more releases"),
        ((Arm("a", 0.5), Arm("a", 0.5)), "each once"),
        ((Arm("a", 0.5), Arm("b", 0.4)), "add up to 0.9"),
        ((Arm("a", 1.5), Arm("b", -0.5)), "from 0 to 1"),
    ],
)
def test_an_invalid_split_is_refused(arms: tuple[Arm, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split("s", arms)
