"""The states of a release, which may follow which, and what is to be done about one next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    ADDED = "added"  # registered, never loaded
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"
    GONE = "gone"  # built in, and the stack now brings another one


FOLLOWS = {
    State.ADDED: frozenset({State.LOADING, State.READY, State.FAILED, State.UNLOADED, State.GONE}),
    State.LOADING: frozenset({State.LOADING, State.WARMING, State.FAILED, State.UNLOADED, State.GONE}),
    State.WARMING: frozenset({State.READY, State.FAILED, State.UNLOADED, State.LOADING, State.GONE}),
    State.READY: frozenset({State.DRAINING, State.FAILED, State.LOADING, State.GONE}),
    State.DRAINING: frozenset({State.UNLOADED, State.READY, State.FAILED, State.LOADING, State.GONE}),
    State.UNLOADED: frozenset({State.LOADING, State.READY, State.FAILED, State.GONE}),
    State.FAILED: frozenset({State.LOADING, State.READY, State.UNLOADED, State.FAILED, State.GONE}),
    State.GONE: frozenset({State.UNLOADED}),  # when the stack brings it again
}

# Those of a release that is wanted and not ready yet.
ON_THEIR_WAY = frozenset({State.ADDED, State.LOADING, State.WARMING, State.UNLOADED})


def may_follow(state: State, following: State) -> bool:
    return following in FOLLOWS[state]


class Presence(str, Enum):
    """How much of a release one Triton server has."""

    AWAY = "away"  # the server does not answer, so nobody knows
    ABSENT = "absent"
    PARTLY = "partly"  # some of its Triton models, and not the one that requests name
    LOADED = "loaded"
    BROKEN = "broken"  # absent, and loading it there has failed where others could


class Action(str, Enum):
    NOTHING = "nothing"
    LOAD = "load"  # verify, load where it is missing, warm up: ready
    FILL = "fill"  # it is ready elsewhere: load it where it is missing too
    ACCEPT = "accept"  # Triton has loaded it itself, or it was about to be unloaded: ready
    DRAIN = "drain"  # nobody is sent to it any more
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Situation:
    """Of one release: what people want of it, what the store says it is, and what the servers say."""

    wanted: bool
    state: State
    presences: tuple[Presence, ...]
    gets_traffic: bool = False
    is_built_in: bool = False
    is_drained: bool = False
    may_retry: bool = False  # a server was started anew since it failed
    awaits_base: bool = False  # an adapter, whose base is wanted and not ready yet


def next_action(now: Situation) -> Action:
    """What brings a release closer to what is wanted of it.

    What gets traffic is wanted, whatever else is said. What has failed stays failed until somebody asks
    again or a server starts anew. A built-in release that is gone has lent its Triton models' names to the
    one that follows it, so nothing is done in its name. An adapter is loaded after its base.
    """
    action = _next_of_its_own(now)
    return Action.NOTHING if now.awaits_base and action is Action.LOAD else action


def _next_of_its_own(now: Situation) -> Action:
    there = [each for each in now.presences if each is not Presence.AWAY]
    if now.state is State.GONE or not there:
        return Action.NOTHING
    is_loaded = Presence.LOADED in there
    if not (now.wanted or now.gets_traffic):
        return _towards_nothing(now, has_some=is_loaded or Presence.PARTLY in there)
    if now.state is State.FAILED:
        return _after_failure(now, is_loaded, has_some=is_loaded or Presence.PARTLY in there)
    if now.state is State.READY:
        if not is_loaded:
            return Action.LOAD
        is_missing = Presence.ABSENT in there or Presence.PARTLY in there
        return Action.FILL if is_missing else Action.NOTHING
    if now.state is State.DRAINING:
        return Action.ACCEPT if is_loaded else Action.LOAD
    comes_by_itself = now.is_built_in and now.state in (State.ADDED, State.UNLOADED)
    return Action.ACCEPT if comes_by_itself and is_loaded else Action.LOAD


def _towards_nothing(now: Situation, has_some: bool) -> Action:
    if now.state is State.READY:
        return Action.DRAIN
    if now.state is State.DRAINING:
        return Action.UNLOAD if now.is_drained else Action.NOTHING
    if now.state in (State.LOADING, State.WARMING):
        return Action.UNLOAD
    return Action.UNLOAD if has_some else Action.NOTHING


def _after_failure(now: Situation, is_loaded: bool, has_some: bool) -> Action:
    """Requests are not sent to a failed release, so what is left of it may go."""
    if now.is_built_in and is_loaded:
        return Action.ACCEPT  # by Triton itself, at a start since
    if now.may_retry:
        return Action.LOAD
    return Action.UNLOAD if has_some and not now.is_built_in else Action.NOTHING
