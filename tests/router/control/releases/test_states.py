from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.states import Action, Presence, Situation, State, may_follow, next_action

situations = st.builds(
    Situation,
    wanted=st.booleans(),
    state=st.sampled_from(State),
    presences=st.lists(st.sampled_from(Presence), max_size=3).map(tuple),
    gets_traffic=st.booleans(),
    is_built_in=st.booleans(),
    is_drained=st.booleans(),
    may_retry=st.booleans(),
)
MISSING = (Presence.ABSENT, Presence.PARTLY, Presence.BROKEN)


def act(now: Situation, *, is_good: bool) -> Situation:
    """What the world looks like after the next action, where loads of the release succeed or fail."""
    action = next_action(now)
    there = [each for each in now.presences if each is not Presence.AWAY]
    if action is Action.NOTHING:
        return replace(now, is_drained=now.state is State.DRAINING)
    if action is Action.ACCEPT:
        return moved(now, State.READY)
    if action is Action.DRAIN:
        return replace(moved(now, State.DRAINING), is_drained=False)
    if action is Action.UNLOAD:
        emptied = replace(now, presences=swapped(now, Presence.ABSENT, *MISSING[1:2], Presence.LOADED))
        return emptied if now.state in (State.FAILED, State.UNLOADED) else moved(emptied, State.UNLOADED)
    assert there
    if action is Action.FILL:
        arrived = Presence.LOADED if is_good else Presence.BROKEN
        return replace(now, presences=swapped(now, arrived, Presence.ABSENT, Presence.PARTLY))
    tried = replace(moved(now, State.LOADING), may_retry=False)
    if is_good:
        loaded = replace(tried, presences=swapped(now, Presence.LOADED, *MISSING))
        return moved(moved(loaded, State.WARMING), State.READY)
    return moved(replace(tried, presences=swapped(now, Presence.PARTLY, Presence.ABSENT)), State.FAILED)


def moved(now: Situation, state: State) -> Situation:
    assert may_follow(now.state, state), f"{now.state} -> {state}"
    return replace(now, state=state)


def swapped(now: Situation, to: Presence, *those: Presence) -> tuple[Presence, ...]:
    return tuple(to if each in those else each for each in now.presences)


def settled(now: Situation, *, is_good: bool) -> Situation:
    for _ in range(6):
        now = act(now, is_good=is_good)
    assert act(now, is_good=is_good) == now, "still not settled"
    return now


@settings(deadline=None)
@given(situations)
def test_no_release_gets_stuck(now: Situation) -> None:
    end = settled(now, is_good=True)
    there = {each for each in end.presences if each is not Presence.AWAY}
    if now.state is State.GONE or not there:
        assert end.presences == now.presences
        assert end.state is now.state
    elif not (now.wanted or now.gets_traffic):
        assert not there & {Presence.LOADED, Presence.PARTLY}
        assert end.state in (State.ADDED, State.UNLOADED, State.FAILED)
    elif end.state is State.FAILED:
        assert now.state is State.FAILED
        assert not now.may_retry
    else:
        assert end.state is State.READY
        assert Presence.LOADED in there
        assert not there & {Presence.ABSENT}


@settings(deadline=None)
@given(situations)
def test_a_release_that_gets_traffic_is_neither_drained_nor_unloaded(now: Situation) -> None:
    now = replace(now, gets_traffic=True)
    is_answering = now.state in (State.READY, State.DRAINING, State.LOADING, State.WARMING)
    if is_answering:
        assert next_action(now) not in (Action.DRAIN, Action.UNLOAD)


@settings(deadline=None)
@given(situations)
def test_a_ready_release_is_drained_before_it_is_unloaded(now: Situation) -> None:
    if next_action(now) is Action.UNLOAD:
        assert now.state is not State.READY
        assert now.state is not State.DRAINING or now.is_drained


@settings(deadline=None)
@given(situations)
def test_a_release_that_cannot_be_loaded_is_tried_once(now: Situation) -> None:
    tries = 0
    for _ in range(10):
        tries += next_action(now) is Action.LOAD
        now = act(now, is_good=False)
    assert tries <= 1


@settings(deadline=None)
@given(situations)
def test_a_failed_release_is_retried_only_after_a_server_returned(now: Situation) -> None:
    failed = replace(now, state=State.FAILED, may_retry=False)
    assert next_action(failed) not in (Action.LOAD, Action.FILL)
    wanted = replace(failed, may_retry=True, wanted=True, presences=(Presence.ABSENT,))
    assert next_action(wanted) is Action.LOAD


@settings(deadline=None)
@given(situations)
def test_a_gone_release_causes_no_action(now: Situation) -> None:
    assert next_action(replace(now, state=State.GONE)) is Action.NOTHING


@settings(deadline=None)
@given(situations)
def test_no_action_is_taken_while_no_server_answers(now: Situation) -> None:
    away = replace(now, presences=(Presence.AWAY,) * len(now.presences))
    assert next_action(away) is Action.NOTHING


@settings(deadline=None)
@given(situations, st.booleans())
def test_every_action_leads_to_an_allowed_next_state(now: Situation, is_good: bool) -> None:
    for _ in range(6):
        now = act(now, is_good=is_good)  # asserts that it may


WANTED = Situation(wanted=True, state=State.UNLOADED, presences=(Presence.ABSENT,))


@pytest.mark.parametrize(
    ("now", "action"),
    [
        (WANTED, Action.LOAD),
        (replace(WANTED, awaits_base=True), Action.NOTHING),
        (replace(WANTED, wanted=False, state=State.READY, awaits_base=True), Action.DRAIN),
        (replace(WANTED, state=State.READY), Action.LOAD),  # Triton was started anew
        (replace(WANTED, state=State.LOADING), Action.LOAD),  # the router in control died
        (replace(WANTED, presences=(Presence.LOADED,)), Action.LOAD),  # nobody has looked at its files
        (replace(WANTED, presences=(Presence.LOADED,), is_built_in=True), Action.ACCEPT),
        (replace(WANTED, is_built_in=True), Action.LOAD),
        (replace(WANTED, state=State.DRAINING, presences=(Presence.LOADED,)), Action.ACCEPT),
        (
            replace(WANTED, state=State.READY, presences=(Presence.LOADED, Presence.ABSENT)),
            Action.FILL,
        ),
        (
            replace(WANTED, state=State.READY, presences=(Presence.LOADED, Presence.BROKEN)),
            Action.NOTHING,
        ),
        (
            replace(WANTED, state=State.READY, presences=(Presence.LOADED, Presence.AWAY)),
            Action.NOTHING,
        ),
        (replace(WANTED, state=State.FAILED, presences=(Presence.PARTLY,)), Action.UNLOAD),
        (replace(WANTED, wanted=False, state=State.LOADING), Action.UNLOAD),
        (replace(WANTED, wanted=False, presences=(Presence.LOADED,)), Action.UNLOAD),
    ],
)
def test_each_situation_has_its_next_action(now: Situation, action: Action) -> None:
    assert next_action(now) is action
