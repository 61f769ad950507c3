"""The built-in releases of a stack: found in the store, or added to it, when a router starts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.control.releases import records, writes
from router.control.releases.records import RolloutState
from router.control.releases.states import State
from router.routing.split import first_split
from router.store.schema import releases, rollouts, splits

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from router.control.releases.records import Release
    from router.core.manifest import Manifest
    from router.routing.split import ModelSplit
    from router.store.database import Store

_REASON = "the stack now has another release"


def adopt(store: Store, manifest: Manifest, now_s: float | None = None) -> Manifest:
    """The manifest with its version: that of the same release when a stack last had it, or the next.

    The built-in release before it is gone: both have the same names in Triton. It gets the requests that
    that one got. Raises ValueError where the model's name belongs to another kind of model.
    """
    at_s = time.time() if now_s is None else now_s
    with store.begin() as connection:
        writes.bump(store, connection)
        known = records.list_releases(connection, manifest.model)
        brought = [each for each in known if each.manifest.is_built_in]
        same = [each for each in brought if each.manifest.identity == manifest.identity]
        _refuse_other_kind(manifest, [each for each in known if each not in brought])
        if same:
            mine = replace(manifest, version=same[-1].version)
            _bring_again(connection, same[-1], mine, at_s)
        else:
            mine = replace(manifest, version=writes.next_version(connection, manifest.model))
            writes.add_release(connection, mine, "built-in release of the stack", at_s, wanted=True)
            writes.write_event(
                connection, at_s, mine.model, mine.version, "add", "built-in release of the stack"
            )
        gone = {each.version for each in brought} - {mine.version}
        for each in brought:
            if each.version in gone and each.state is not State.GONE:
                _let_go(connection, each, at_s)
        _correct_split(store, connection, mine, gone, at_s)
    return mine


def retire(store: Store, brought: Collection[Manifest], now_s: float | None = None) -> None:
    """Built-in releases of an earlier stack that this one does not have are gone from Triton."""
    at_s = time.time() if now_s is None else now_s
    names = {manifest.name for manifest in brought}
    with store.begin() as connection:
        left = [
            each
            for each in records.list_releases(connection)
            if each.manifest.is_built_in and each.state is not State.GONE and each.manifest.name not in names
        ]
        if not left:
            return
        writes.bump(store, connection)
        for each in left:
            _let_go(connection, each, at_s)
            split = records.find_split(connection, each.manifest.model)
            if split is not None:
                _leave_split(store, connection, split, each.version, at_s)


def _leave_split(store: Store, connection: Connection, split: ModelSplit, version: int, now_s: float) -> None:
    """Who is left takes over; a model with nobody left is not served any more."""
    ended = _end_rollouts(connection, split, {version}, now_s)
    others = [(each, weight) for each, weight in ended.arms if each != version]
    heirs = [each for each, _ in sorted(others, key=lambda arm: -arm[1])]
    heirs += [] if ended.standby in (None, version) else [ended.standby]
    if not heirs:
        connection.execute(sql.delete(splits).where(splits.c.model == split.model))
        return
    if ended.weight_of(version) > 0:
        ended = ended.all_to(heirs[0])
    if (corrected := ended.without(version)) != split:
        writes.put_split(store, connection, corrected)


def _refuse_other_kind(manifest: Manifest, others: list[Release]) -> None:
    for other in others:
        if other.manifest.kind is not manifest.kind:
            raise ValueError(
                f"{manifest.model} is already the name of a model for {other.manifest.kind.value}, and "
                f"the stack has one for {manifest.kind.value}: give it another name"
            )


def _bring_again(connection: Connection, before: Release, mine: Manifest, now_s: float) -> None:
    """Its path on disk may have changed; whether it is wanted has not."""
    chosen = writes.is_release(mine.model, mine.version)
    values: dict[str, object] = {"manifest": mine.to_json(), "digest": mine.digest}
    if before.state is State.GONE:
        values["wanted"] = True
    connection.execute(sql.update(releases).where(chosen).values(values))
    if before.state in (State.GONE, State.FAILED):
        writes.move(connection, now_s, mine, State.UNLOADED, "built-in release of the stack")


def _let_go(connection: Connection, release: Release, now_s: float) -> None:
    writes.move(connection, now_s, release.manifest, State.GONE, _REASON)
    chosen = writes.is_release(release.manifest.model, release.version)
    connection.execute(sql.update(releases).where(chosen).values(wanted=False))


def _correct_split(
    store: Store, connection: Connection, mine: Manifest, gone: set[int], now_s: float
) -> None:
    split = records.find_split(connection, mine.model)
    if split is None:
        writes.put_split(store, connection, first_split(mine.model, mine.version))
        return
    ended = _end_rollouts(connection, split, gone, now_s)
    corrected = successor(ended, mine.version, gone)
    if corrected != split:
        writes.put_split(store, connection, corrected)


def _end_rollouts(connection: Connection, split: ModelSplit, gone: set[int], now_s: float) -> ModelSplit:
    """Those that have lost one of their two releases."""
    for rollout in records.list_rollouts(connection, split.model, only_open=True):
        if {rollout.stable, rollout.canary} & gone:
            values = {"state": RolloutState.ROLLED_BACK.value, "reason": _REASON, "ended_s": now_s}
            connection.execute(sql.update(rollouts).where(rollouts.c.id == rollout.id).values(values))
            split = split.all_to(rollout.stable)
    return split


def successor(split: ModelSplit, version: int, gone: set[int]) -> ModelSplit:
    """The split with one release instead of those that are gone."""
    weights: dict[int, float] = {}
    for each, weight in split.arms:
        there = version if each in gone else each
        weights[there] = weights.get(there, 0.0) + weight
    shadow = None if split.shadow and split.shadow.version in gone else split.shadow
    standby = None if split.standby in gone or split.standby in weights else split.standby
    return replace(split, arms=tuple(weights.items()), shadow=shadow, standby=standby)
