from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing.split import ModelSplit, Shadow, Sticky, first_split, split_from_json

versions = st.integers(1, 5)
weights = st.floats(0.001, 1)


@st.composite
def model_splits(draw: st.DrawFn) -> ModelSplit:
    """As acts of all kinds leave them."""
    split = ModelSplit(
        "m", ((draw(versions), 1.0),), draw(st.text(max_size=8)), draw(st.sampled_from(Sticky))
    )
    for act in draw(st.lists(st.sampled_from(["all", "canary", "shadow"]), max_size=6)):
        version = draw(versions)
        if act == "all":
            split = split.all_to(version)
        elif act == "canary" and version != split.stable:
            split = split.with_canary(version, draw(weights), 7, draw(st.integers(0, 3)))
        elif version not in dict(split.arms):
            shadow = Shadow(version, draw(weights))
            split = ModelSplit(
                "m", split.arms, split.salt, split.sticky, shadow, split.standby, split.rollout_id, split.step
            )
    return split


def check(split: ModelSplit) -> None:
    arms = dict(split.arms)
    assert len(arms) == len(split.arms)
    assert math.isclose(sum(arms.values()), 1)
    assert split.standby not in arms
    assert split.shadow is None or split.shadow.version not in arms
    assert split.stable in arms
    assert set(arms) <= split.versions
    assert (len(arms) == 2) == (split.rollout_id is not None)


@given(model_splits())
def test_a_split_stays_consistent_after_any_operations(split: ModelSplit) -> None:
    check(split)


@given(model_splits(), versions)
def test_sending_all_traffic_to_one_release_keeps_the_keys_and_makes_the_stable_one_standby(
    split: ModelSplit, version: int
) -> None:
    after = split.all_to(version)
    check(after)
    assert (after.arms, after.stable, after.rollout_id, after.step) == (((version, 1.0),), version, None, 0)
    assert (after.salt, after.sticky) == (split.salt, split.sticky)
    if split.stable != version:
        assert after.standby == split.stable
    assert split.all_to(version).all_to(version) == after


@given(model_splits(), versions, st.lists(weights, min_size=1, max_size=4), st.text(max_size=20))
def test_a_growing_canary_keeps_its_keys(
    split: ModelSplit, canary: int, steps: list[float], key: str
) -> None:
    split = split.all_to(split.stable)
    if canary == split.stable:
        return
    stable, was_in = split.stable, False
    for step, weight in enumerate(sorted(steps)):
        split = split.with_canary(canary, weight, 1, step)
        check(split)
        assert (split.stable, split.weight_of(canary), split.step) == (stable, weight, step)
        is_in = split.split().choose(key) == str(canary)
        assert is_in or not was_in
        was_in = is_in


@pytest.mark.parametrize("weight", [0.01, 0.25, 1.0])
def test_a_rollout_ended_at_any_step_leaves_the_right_release_on_standby(weight: float) -> None:
    split = first_split("m", 1).all_to(2).with_canary(3, weight, rollout_id=4, step=0)
    assert (split.stable, split.standby) == (2, 1)
    assert split.all_to(3).standby == 2  # promoted: the one before it
    assert split.all_to(2).standby == 1  # taken back: not the one that has failed


def test_a_standby_that_becomes_the_canary_is_no_longer_standby() -> None:
    split = first_split("m", 1).all_to(2).with_canary(1, 0.5, rollout_id=1, step=0)
    assert split.standby is None
    assert split.versions == {1, 2}
    assert split.all_to(2).standby is None


def test_a_release_without_weight_is_not_a_canarys_baseline() -> None:
    split = ModelSplit("m", ((1, 1.0), (2, 0.0)), "s")
    assert split.with_canary(3, 0.1, 1, 0).arms == ((3, 0.1), (1, 0.9))


def test_the_stable_release_cannot_be_its_own_canary() -> None:
    with pytest.raises(ValueError, match="each once"):
        first_split("m", 1).with_canary(1, 0.5, 1, 0)


@given(model_splits(), st.lists(st.text(max_size=20), max_size=20))
def test_a_split_survives_a_restart_and_every_key_keeps_its_release(
    split: ModelSplit, keys: list[str]
) -> None:
    again = split_from_json("m", split.to_json())
    assert again == split
    assert [again.split().choose(key) for key in keys] == [split.split().choose(key) for key in keys]


def test_each_release_in_a_split_has_a_role() -> None:
    rollout = first_split("m", 1).all_to(2).with_canary(3, 1.0, 1, 3)
    assert [rollout.role_of(version) for version in (1, 2, 3, 4)] == ["standby", "stable", "canary", ""]
    by_hand = ModelSplit("m", ((1, 0.5), (2, 0.5)), "s", shadow=Shadow(3, 0.5))
    assert [by_hand.role_of(version) for version in (1, 2, 3)] == ["arm", "stable", "shadow"]


def test_two_models_split_requests_with_different_salts() -> None:
    assert first_split("m", 1).salt != first_split("m", 1).salt


@pytest.mark.parametrize(
    "arms", [(), ((1, 0.5),), ((1, 0.5), (1, 0.5)), ((1, 1.5), (2, -0.5)), ((1, math.nan),)]
)
def test_invalid_weights_are_refused(arms: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"split|weights"):
        ModelSplit("m", arms, "s")


def test_a_shadow_and_what_stands_by_stay_until_their_own_release_is_promoted_or_withdrawn() -> None:
    split = replace(first_split("m", 1).all_to(2), shadow=Shadow(4, 0.1))
    assert split.all_to(3).shadow == Shadow(4, 0.1)
    assert split.all_to(4).shadow is None
    assert (split.without(3).shadow, split.without(3).standby) == (Shadow(4, 0.1), 1)
    assert split.without(4).shadow is None
    assert split.without(1).standby is None
