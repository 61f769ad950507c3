from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sql

from router.control.releases import records
from router.control.releases.commands import ReleaseCommands
from router.control.releases.plan import Plan
from router.control.releases.records import GoldenPrompt, Rollout, RolloutState
from router.control.releases.states import State
from router.control.releases.writes import COUNTER, bump, put_split
from router.core.manifest import Kind
from router.core.tenant import Role, Scope
from router.routing.split import ModelSplit, Shadow, Sticky
from router.store.database import Store, read_counters
from router.store.schema import audit
from router.tenants.audited import AlreadyThere, Forbidden
from router.tenants.rbac import Actor
from router.tenants.records import NotFound
from tests.router.control.releases.values import MODEL, built_in, find, manifest, office, put
from tests.router.tenants.values import NOW_S


def split_of(store: Store) -> ModelSplit:
    with store.read() as connection:
        found = records.find_split(connection, MODEL)
    assert found is not None
    return found


def newest_rollout(store: Store) -> Rollout:
    with store.read() as connection:
        return records.list_rollouts(connection, MODEL)[0]


def entries(store: Store) -> list[tuple[str, str, bool]]:
    with store.read() as connection:
        rows = connection.execute(sql.select(audit).order_by(audit.c.id))
        return [(row.action, row.target, row.allowed) for row in rows]


def events(store: Store) -> list[tuple[str, int | None]]:
    with store.read() as connection:
        return [(each.what, each.version) for each in reversed(records.list_events(connection, MODEL))]


def serve(store: Store, *versions: int) -> ReleaseCommands:
    """These are ready, and the first gets all requests."""
    made = office(store)
    for version in versions:
        made.add(manifest(version))
    made.promote(MODEL, versions[0])
    for version in versions:
        made.load(MODEL, version)
        put(store, version, State.READY)
    return made


def begin_step(store: Store, weight: float, step: int = 0) -> None:
    """As the one who decides about canaries does."""
    rollout = newest_rollout(store)
    with store.begin() as connection:
        bump(store, connection)
        split = records.find_split(connection, MODEL)
        assert split is not None
        put_split(store, connection, split.with_canary(rollout.canary, weight, rollout.id, step))


# Each act, once


def test_a_release_is_added_once_and_never_changes(store: Store) -> None:
    made = office(store)
    added = made.add(manifest(1), "the first")
    assert (added.state, added.wanted, added.notes) == (State.ADDED, False, "the first")
    assert added.manifest == manifest(1)
    with pytest.raises(AlreadyThere, match="smol@1 already exists"):
        made.add(replace(manifest(1), weights_sha256="other"))
    assert find(store, 1).manifest == manifest(1)
    assert entries(store) == [("release.add", "smol@1", True)]
    assert events(store) == [("add", 1)]


def test_a_model_has_releases_of_one_kind(lite: Store) -> None:
    office(lite).add(manifest(1))
    with pytest.raises(ValueError, match="smol is a model for text, and this release is one for tensors"):
        office(lite).add(manifest(2, kind=Kind.TENSORS))


def test_a_number_is_given_once_even_if_its_release_is_removed(lite: Store) -> None:
    made = office(lite)
    assert made.next_version(MODEL) == 1
    made.add(manifest(1))
    made.add(manifest(2))
    made.forget(MODEL, 2)
    assert made.next_version(MODEL) == 3


def test_a_load_is_a_request_to_the_controller_and_retries_a_failed_release(lite: Store) -> None:
    made = office(lite)
    made.add(manifest(1))
    made.load(MODEL, 1)
    assert find(lite, 1).wanted
    put(lite, 1, State.FAILED, reason="no memory")
    made.load(MODEL, 1)
    again = find(lite, 1)
    assert (again.state, again.reason) == (State.UNLOADED, "")


def test_the_first_release_of_a_model_is_promoted_before_it_is_loaded(lite: Store) -> None:
    made = office(lite)
    made.add(manifest(1))
    assert made.promote(MODEL, 1) == 1
    assert split_of(lite).arms == ((1, 1.0),)
    assert find(lite, 1).wanted
    assert entries(lite)[-1] == ("release.promote", "smol@1", True)


def test_a_promoted_over_release_becomes_standby_and_the_former_standby_goes(store: Store) -> None:
    made = serve(store, 1, 2, 3)
    made.promote(MODEL, 2)
    assert (split_of(store).arms, split_of(store).standby) == (((2, 1.0),), 1)
    made.promote(MODEL, 3)
    assert split_of(store).standby == 2
    assert [find(store, version).wanted for version in (1, 2, 3)] == [False, True, True]


def test_a_standby_takes_over_again(lite: Store) -> None:
    made = serve(lite, 1, 2)
    made.promote(MODEL, 2)
    assert made.roll_back(MODEL, "too slow") == 1
    assert (split_of(lite).stable, split_of(lite).standby) == (1, 2)
    assert events(lite)[-1] == ("rollback", 1)


def test_the_split_is_set_by_hand(lite: Store) -> None:
    made = serve(lite, 1, 2, 3)
    made.set_split(MODEL, [(2, 0.25), (1, 0.75)], Sticky.USER, Shadow(3, 0.5))
    split = split_of(lite)
    assert split.arms == ((2, 0.25), (1, 0.75))
    assert (split.sticky, split.shadow) == (Sticky.USER, Shadow(3, 0.5))
    salt = split.salt
    made.set_split(MODEL, [(2, 1.0)], None, None)
    split = split_of(lite)
    assert (split.sticky, split.shadow, split.standby, split.salt) == (Sticky.USER, None, 1, salt)
    assert not find(lite, 3).wanted, "what was only a shadow is loaded for nobody"


def test_a_release_without_traffic_is_unloaded_and_leaves_the_split(lite: Store) -> None:
    made = serve(lite, 1, 2)
    made.promote(MODEL, 2)
    made.unload(MODEL, 1)
    assert not find(lite, 1).wanted
    assert split_of(lite).versions == {2}
    put(lite, 1, State.UNLOADED)
    assert made.forget(MODEL, 1).version == 1
    with pytest.raises(NotFound, match="release smol@1 not found; there are smol@2"):
        find(lite, 1)


def test_the_only_release_of_a_model_is_unloaded_if_it_cannot_serve_or_on_explicit_request(
    lite: Store,
) -> None:
    made = serve(lite, 1)
    with pytest.raises(ValueError, match="gets 100% of the requests"):
        made.unload(MODEL, 1)
    put(lite, 1, State.FAILED)
    made.unload(MODEL, 1)
    with lite.read() as connection:
        assert records.find_split(connection, MODEL) is None
    made.forget(MODEL, 1)
    made = serve(lite, 2)
    made.unload(MODEL, 2, withdraw=True)
    assert not find(lite, 2).wanted


def test_a_rollout_asks_for_its_canary_to_be_loaded(lite: Store) -> None:
    made = serve(lite, 1)
    made.add(manifest(2))
    rollout = made.begin_rollout(MODEL, 2, Plan(), [GoldenPrompt("2+2?", contains="4")])
    assert (rollout.stable, rollout.canary, rollout.progress.step) == (1, 2, -1)
    assert rollout == newest_rollout(lite)
    assert find(lite, 2).wanted
    assert split_of(lite).arms == ((1, 1.0),)


def test_a_rollout_is_paused_and_resumed(lite: Store) -> None:
    made = serve(lite, 1, 2)
    made.begin_rollout(MODEL, 2, Plan())
    made.pause(MODEL)
    assert (newest_rollout(lite).state, newest_rollout(lite).progress.paused) == (RolloutState.PAUSED, True)
    made.pause(MODEL, False)
    assert (newest_rollout(lite).state, newest_rollout(lite).progress.paused) == (RolloutState.RUNNING, False)
    assert events(lite)[-2:] == [("pause", 2), ("resume", 2)]


@pytest.mark.parametrize("weight", [0.05, 1.0])
def test_a_rollout_is_rolled_back_by_hand(lite: Store, weight: float) -> None:
    made = serve(lite, 1, 2)
    made.begin_rollout(MODEL, 2, Plan())
    begin_step(lite, weight)
    assert made.roll_back(MODEL, "I do not like it") == 1
    ended = newest_rollout(lite)
    assert (ended.state, ended.reason, ended.ended_s) == (RolloutState.ROLLED_BACK, "I do not like it", NOW_S)
    assert (split_of(lite).arms, split_of(lite).standby) == (((1, 1.0),), None)
    assert not find(lite, 2).wanted
    assert find(lite, 1).wanted


def test_a_rollout_that_has_not_started_can_be_rolled_back(lite: Store) -> None:
    made = serve(lite, 1, 2)
    made.begin_rollout(MODEL, 2, Plan())
    assert made.roll_back(MODEL) == 1
    assert not find(lite, 2).wanted


@pytest.mark.parametrize("weight", [0.05, 1.0])
def test_a_canary_is_promoted_by_hand(lite: Store, weight: float) -> None:
    made = serve(lite, 1, 2)
    made.begin_rollout(MODEL, 2, Plan())
    begin_step(lite, weight)
    assert made.promote(MODEL) == 2
    assert newest_rollout(lite).state is RolloutState.PROMOTED
    assert (split_of(lite).arms, split_of(lite).standby) == (((2, 1.0),), 1)
    assert entries(lite)[-1] == ("release.promote", "smol@2", True)


def test_promoting_another_release_ends_the_rollout(lite: Store) -> None:
    made = serve(lite, 1, 2, 3)
    made.begin_rollout(MODEL, 2, Plan())
    made.promote(MODEL, 3)
    assert newest_rollout(lite).state is RolloutState.ROLLED_BACK
    assert not find(lite, 2).wanted


def test_every_release_command_is_announced_to_the_routers(lite: Store) -> None:
    made = office(lite)
    seen = []
    for act in (lambda: made.add(manifest(1)), lambda: made.load(MODEL, 1), lambda: made.unload(MODEL, 1)):
        act()
        with lite.read() as connection:
            seen.append(read_counters(connection).get(COUNTER, 0))
    assert seen == [1, 2, 3]


# Refusals


def rolling(store: Store) -> ReleaseCommands:
    made = serve(store, 1, 2)
    made.add(manifest(3))
    made.begin_rollout(MODEL, 2, Plan())
    return made


def gone(store: Store) -> ReleaseCommands:
    made = serve(store, 1, 2)
    put(store, 2, State.GONE)
    return made


def divided(store: Store) -> ReleaseCommands:
    made = serve(store, 1, 2)
    made.add(manifest(3))
    made.set_split(MODEL, [(1, 0.5), (2, 0.5)], None, None)
    return made


def with_one_failed(store: Store) -> ReleaseCommands:
    made = serve(store, 1)
    made.add(manifest(2))
    put(store, 2, State.FAILED, reason="no memory")
    return made


def with_a_built_in(store: Store) -> ReleaseCommands:
    made = serve(store, 1)
    made.add(replace(built_in(), version=2))
    return made


def tensors(store: Store) -> ReleaseCommands:
    made = office(store)
    made.add(manifest(1, kind=Kind.TENSORS))
    made.promote(MODEL, 1)
    made.add(manifest(2, kind=Kind.TENSORS))
    return made


def served(store: Store) -> ReleaseCommands:
    return serve(store, 1, 2)


GOLDEN = [GoldenPrompt("2+2?", contains="4")]
Refused = Callable[[ReleaseCommands], object]
REFUSALS: list[tuple[Callable[[Store], ReleaseCommands], Refused, type[Exception], str]] = [
    (office, lambda it: it.load(MODEL, 7), NotFound, "release smol@7 not found; `inflight release list`"),
    (office, lambda it: it.promote(MODEL), ValueError, "smol has no rollout: name the release"),
    (office, lambda it: it.roll_back(MODEL), ValueError, "smol is not served"),
    (office, lambda it: it.pause(MODEL), NotFound, "smol has no rollout"),
    (served, lambda it: it.roll_back(MODEL), ValueError, "neither a rollout nor a standby release"),
    (served, lambda it: it.unload(MODEL, 1), ValueError, "gets 100% of the requests"),
    (served, lambda it: it.unload(MODEL, 9), NotFound, "release smol@9 not found"),
    (served, lambda it: it.forget(MODEL, 1), ValueError, "is in the traffic split"),
    (served, lambda it: it.forget(MODEL, 2), ValueError, "smol@2 is ready: unload it first"),
    (served, lambda it: it.set_split(MODEL, [], None, None), ValueError, "one or more releases"),
    (served, lambda it: it.set_split(MODEL, [(1, 0.5)], None, None), ValueError, "add up to 0.5"),
    (
        served,
        lambda it: it.set_split(MODEL, [(1, 0.5), (1, 0.5)], None, None),
        ValueError,
        "each once",
    ),
    (served, lambda it: it.set_split(MODEL, [(9, 1.0)], None, None), NotFound, "release smol@9 not found"),
    (
        served,
        lambda it: it.set_split(MODEL, [(1, 1.0)], None, Shadow(9, 0.1)),
        NotFound,
        "release smol@9 not found",
    ),
    (served, lambda it: it.begin_rollout(MODEL, 1, Plan()), ValueError, "already gets 100% of the requests"),
    (served, lambda it: it.begin_rollout(MODEL, 9, Plan()), NotFound, "release smol@9 not found"),
    (with_one_failed, lambda it: it.promote(MODEL, 2), ValueError, "smol@2 is failed: no memory; first"),
    (
        with_one_failed,
        lambda it: it.set_split(MODEL, [(2, 1.0)], None, None),
        ValueError,
        "smol@2 is failed: no memory",
    ),
    (with_a_built_in, lambda it: it.forget(MODEL, 2), ValueError, "is built into the stack"),
    (gone, lambda it: it.load(MODEL, 2), ValueError, "smol@2 is gone"),
    (gone, lambda it: it.begin_rollout(MODEL, 2, Plan()), ValueError, "smol@2 is gone"),
    (divided, lambda it: it.begin_rollout(MODEL, 3, Plan()), ValueError, "split over several releases"),
    (rolling, lambda it: it.begin_rollout(MODEL, 3, Plan()), ValueError, "smol@2 is being rolled out"),
    (rolling, lambda it: it.unload(MODEL, 2), ValueError, "smol@2 is being rolled out"),
    (rolling, lambda it: it.unload(MODEL, 1), ValueError, "smol@2 is being rolled out"),
    (
        rolling,
        lambda it: it.set_split(MODEL, [(1, 1.0)], None, None),
        ValueError,
        "smol@2 is being rolled out",
    ),
    (tensors, lambda it: it.begin_rollout(MODEL, 2, Plan(), GOLDEN), ValueError, "this model is for tensors"),
]


@pytest.mark.parametrize(("before", "act", "kind", "message"), REFUSALS)
def test_an_impossible_release_command_is_refused_and_changes_nothing(
    lite: Store,
    before: Callable[[Store], ReleaseCommands],
    act: Refused,
    kind: type[Exception],
    message: str,
) -> None:
    made = before(lite)
    written, told = entries(lite), events(lite)
    with pytest.raises(kind, match=message):
        act(made)
    assert (entries(lite), events(lite)) == (written, told)


def test_a_model_without_a_serving_release_cannot_be_rolled_out(lite: Store) -> None:
    office(lite).add(manifest(1))
    with pytest.raises(ValueError, match="smol is not served yet"):
        office(lite).begin_rollout(MODEL, 1, Plan())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "say what the answer contains, equals or matches"),
        ({"contains": "4", "max_tokens": 0}, "max_tokens 0; allowed: 1 to 1024"),
        ({"matches": "("}, "is not a regular expression"),
    ],
)
def test_a_golden_prompt_that_proves_nothing_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GoldenPrompt("2+2?", **wrong)


# Who may

TENANT = Actor("user-1", "org-1", Role.OWNER)
READER = Actor("user-2", None, Role.OWNER, True, frozenset({Scope.ADMIN_READ}))


@pytest.mark.parametrize("actor", [TENANT, READER])
def test_only_the_platform_may_run_release_commands_and_refused_ones_are_audited(
    lite: Store, actor: Actor
) -> None:
    serve(lite, 1, 2)
    before = entries(lite), events(lite)
    made = ReleaseCommands(lite, actor, lambda: NOW_S)
    acts: dict[str, Callable[[], object]] = {
        "add": lambda: made.add(manifest(3)),
        "remove": lambda: made.forget(MODEL, 2),
        "load": lambda: made.load(MODEL, 2),
        "unload": lambda: made.unload(MODEL, 2),
        "split": lambda: made.set_split(MODEL, [(2, 1.0)], None, None),
        "canary": lambda: made.begin_rollout(MODEL, 2, Plan()),
        "pause": lambda: made.pause(MODEL),
        "resume": lambda: made.pause(MODEL, False),
        "promote": lambda: made.promote(MODEL, 2),
        "rollback": lambda: made.roll_back(MODEL),
    }
    for act in acts.values():
        with pytest.raises(Forbidden, match=r"release\.write is not allowed"):
            act()
    refused = entries(lite)[len(before[0]) :]
    assert [(action, allowed) for action, _, allowed in refused] == [
        (f"release.{name}", False) for name in acts
    ]
    assert events(lite) == before[1]
    assert find(lite, 2).wanted


def test_only_the_platform_may_read_releases(lite: Store) -> None:
    with ReleaseCommands(lite, READER).look() as connection:
        assert records.list_releases(connection) == []
    with (
        pytest.raises(Forbidden, match=r"release\.read is not allowed"),
        ReleaseCommands(lite, TENANT).look(),
    ):
        pass
    assert entries(lite) == [("release.read", "", False)]


# Several at once


def together(*acts: Callable[[], object]) -> list[Exception]:
    """Runs them at the same moment; what they raised."""
    failures: list[Exception] = []
    barrier = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            act()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_of_two_rollouts_begun_at_once_one_starts(store: Store) -> None:
    made = serve(store, 1, 2, 3)
    failures = together(
        *(lambda canary=canary: made.begin_rollout(MODEL, canary, Plan()) for canary in (2, 3, 2, 3))
    )
    assert [type(failure) for failure in failures] == [ValueError] * 3
    with store.read() as connection:
        assert len(records.list_rollouts(connection, MODEL, only_open=True)) == 1


def test_a_release_is_not_unloaded_while_it_is_promoted(store: Store) -> None:
    made = serve(store, 1, 2)
    for _ in range(4):
        target = 2 if split_of(store).stable == 1 else 1
        together(partial(made.promote, MODEL, target), partial(made.unload, MODEL, target))
        split = split_of(store)
        assert all(find(store, version).wanted for version in split.versions)
        for version in (1, 2):
            made.load(MODEL, version)


def test_change_numbers_rise_in_commit_order(store: Store) -> None:
    made = office(store)
    assert not together(*(lambda number=number: made.add(manifest(number)) for number in range(1, 9)))
    with store.read() as connection:
        assert read_counters(connection).get(COUNTER, 0) == 8
        assert len(records.list_releases(connection)) == 8
