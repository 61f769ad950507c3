from __future__ import annotations

from dataclasses import replace

import pytest

from router.control.releases import records
from router.control.releases.adoption import adopt, retire
from router.control.releases.plan import Plan
from router.control.releases.records import RolloutState
from router.control.releases.states import State
from router.control.releases.writes import COUNTER
from router.core.manifest import Kind
from router.routing.split import ModelSplit, Shadow
from router.store.database import Store, read_counters
from tests.router.control.releases.values import MODEL, built_in, find, manifest, office, put


def split_of(store: Store) -> ModelSplit | None:
    with store.read() as connection:
        return records.find_split(connection, MODEL)


def test_a_stack_serves_its_built_in_releases_from_its_first_start(store: Store) -> None:
    adopted = adopt(store, built_in())
    assert adopted == built_in()
    found = find(store, 1)
    assert (found.state, found.wanted, found.digest) == (State.ADDED, True, adopted.digest)
    split = split_of(store)
    assert split is not None
    assert split.arms == ((1, 1.0),)


def test_the_same_release_keeps_its_number_and_its_split_over_restarts(store: Store) -> None:
    adopt(store, built_in())
    put(store, 1, State.READY)
    before = split_of(store)
    moved = replace(built_in(), checkpoint_dir="elsewhere")
    assert adopt(store, moved) == moved
    assert find(store, 1).manifest.checkpoint_dir == "elsewhere"
    assert find(store, 1).digest == moved.digest
    assert find(store, 1).state is State.READY
    assert split_of(store) == before


def test_a_changed_checkpoint_is_the_next_release_and_replaces_the_last_in_the_split(store: Store) -> None:
    adopt(store, built_in("a"))
    before = split_of(store)
    adopted = adopt(store, built_in("b"))
    assert adopted.version == 2
    assert find(store, 1).state is State.GONE
    assert not find(store, 1).wanted
    assert find(store, 2).wanted
    after = split_of(store)
    assert before is not None
    assert after == replace(before, arms=((2, 1.0),))


def test_a_built_in_release_that_returns_has_its_number_again(lite: Store) -> None:
    adopt(lite, built_in("a"))
    adopt(lite, built_in("b"))
    assert adopt(lite, built_in("a")).version == 1
    assert (find(lite, 1).state, find(lite, 1).wanted) == (State.UNLOADED, True)
    assert find(lite, 2).state is State.GONE
    after = split_of(lite)
    assert after is not None
    assert after.arms == ((1, 1.0),)


def test_a_release_unloaded_by_hand_stays_unloaded_and_a_failed_one_is_retried(lite: Store) -> None:
    adopt(lite, built_in())
    office(lite).add(manifest(2))
    put(lite, 2, State.READY)
    made = office(lite)
    made.promote(MODEL, 2)
    made.unload(MODEL, 1)
    put(lite, 1, State.UNLOADED)
    adopt(lite, built_in())
    assert not find(lite, 1).wanted
    put(lite, 1, State.FAILED, reason="no memory")
    adopt(lite, built_in())
    assert find(lite, 1).state is State.UNLOADED


def test_a_promoted_release_keeps_the_traffic_when_the_stack_brings_another(lite: Store) -> None:
    adopt(lite, built_in("a"))
    office(lite).add(manifest(2))
    put(lite, 2, State.READY)
    office(lite).promote(MODEL, 2)
    assert adopt(lite, built_in("b")).version == 3
    split = split_of(lite)
    assert split is not None
    assert (split.arms, split.standby) == (((2, 1.0),), None)
    assert find(lite, 3).wanted


@pytest.mark.parametrize("canary_is_gone", [False, True])
def test_a_rollout_that_loses_one_of_its_releases_is_over(lite: Store, canary_is_gone: bool) -> None:
    adopt(lite, built_in("a"))
    made = office(lite)
    made.add(manifest(2))
    for version in (1, 2):
        put(lite, version, State.READY)
    if canary_is_gone:
        made.promote(MODEL, 2)
    made.begin_rollout(MODEL, 1 if canary_is_gone else 2, Plan())
    adopt(lite, built_in("b"))
    with lite.read() as connection:
        rollout = records.list_rollouts(connection, MODEL)[0]
    assert (rollout.state, rollout.reason) == (
        RolloutState.ROLLED_BACK,
        "the stack now has another release",
    )
    split = split_of(lite)
    assert split is not None
    assert split.arms == (((2 if canary_is_gone else 3), 1.0),)
    assert split.rollout_id is None


def test_a_changed_built_in_release_takes_over_its_weight_and_ends_its_shadow(lite: Store) -> None:
    adopt(lite, built_in("a"))
    made = office(lite)
    made.add(manifest(2))
    for version in (1, 2):
        put(lite, version, State.READY)
    made.set_split(MODEL, [(1, 0.25), (2, 0.75)], None, Shadow(1, 0.5))
    adopt(lite, built_in("b"))
    split = split_of(lite)
    assert split is not None
    assert (split.arms, split.shadow) == (((3, 0.25), (2, 0.75)), None)


def test_a_name_that_belongs_to_another_kind_of_model_is_refused(lite: Store) -> None:
    office(lite).add(manifest(1, kind=Kind.TENSORS))
    with pytest.raises(ValueError, match="smol is already the name of a model for tensors"):
        adopt(lite, built_in())
    assert split_of(lite) is None


def test_a_model_that_the_stack_no_longer_brings_is_gone(store: Store) -> None:
    adopt(store, built_in())
    other = adopt(store, built_in(model="other"))
    retire(store, [other])
    assert (find(store, 1).state, find(store, 1).wanted) == (State.GONE, False)
    assert split_of(store) is None
    assert find(store, 1, "other").state is State.ADDED
    with store.read() as connection:
        before = read_counters(connection).get(COUNTER, 0)
    retire(store, [other])
    with store.read() as connection:
        assert read_counters(connection).get(COUNTER, 0) == before


def test_a_model_of_an_earlier_stack_goes_on_with_releases_of_its_own(lite: Store) -> None:
    adopt(lite, built_in())
    made = office(lite)
    made.add(manifest(2))
    for version in (1, 2):
        put(lite, version, State.READY)
    made.set_split(MODEL, [(2, 0.1), (1, 0.9)], None, None)
    retire(lite, [])
    split = split_of(lite)
    assert split is not None
    assert (split.arms, split.standby) == (((2, 1.0),), None)


def test_the_last_release_of_an_earlier_stack_is_no_longer_standby(lite: Store) -> None:
    adopt(lite, built_in())
    made = office(lite)
    made.add(manifest(2))
    for version in (1, 2):
        put(lite, version, State.READY)
    made.promote(MODEL, 2)
    retire(lite, [])
    split = split_of(lite)
    assert split is not None
    assert split.versions == {2}
