"""Writes that release commands and the router in control have in common."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.control.releases import records
from router.control.releases.states import State, may_follow
from router.store.schema import RELEASE_ADDED, counters, facts, release_events, releases, splits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from router.control.releases.plan import Tolerance
    from router.core.manifest import Manifest
    from router.routing.split import ModelSplit
    from router.store.database import Store

COUNTER = "release_changes"
_SEEN = "release_seen "


class Overtaken(Exception):
    """The release was changed in the meantime, and what was to be written no longer follows."""


def bump(store: Store, connection: Connection) -> None:
    """Tells every router that there is something to read.

    The first thing a transaction does: other changes of releases wait for its end, so that what it reads
    from here on is what it changes, on PostgreSQL too.
    """
    connection.execute(store.insert_new(counters).values({"name": COUNTER, "value": 0}))
    is_ours = counters.c.name == COUNTER
    connection.execute(sql.update(counters).where(is_ours).values(value=counters.c.value + 1))


def note_seen(store: Store, connection: Connection, changes: Mapping[str, int]) -> None:
    """Releases, by their names, that Triton said it has loaded when this change was the last one."""
    for name, change in changes.items():
        connection.execute(store.insert_or_update(facts, {"name": _SEEN + name, "value": str(change)}))


def last_seen(connection: Connection, name: str) -> int:
    """The change after which the router in control last found the release in Triton; 0 for never."""
    return int(connection.scalar(sql.select(facts.c.value).where(facts.c.name == _SEEN + name)) or 0)


def forget_seen(connection: Connection, name: str) -> None:
    connection.execute(sql.delete(facts).where(facts.c.name == _SEEN + name))


def put_tolerance(store: Store, connection: Connection, model: str, tolerance: Tolerance) -> None:
    row = {"name": records.TOLERANCE_OF + model, "value": json.dumps(asdict(tolerance))}
    connection.execute(store.insert_or_update(facts, row))


def put_split(store: Store, connection: Connection, split: ModelSplit) -> None:
    """What a split names is wanted; what falls out of it is not wanted any more."""
    before = records.find_split(connection, split.model)
    row = {"model": split.model, "split": split.to_json(), "changed_s": time.time()}
    connection.execute(store.insert_or_update(splits, row))
    dropped = before.versions - split.versions if before is not None else frozenset()
    for versions, wanted in ((split.versions, True), (dropped, False)):
        chosen = (releases.c.model == split.model) & releases.c.version.in_(versions)
        connection.execute(sql.update(releases).where(chosen).values(wanted=wanted))


def add_release(
    connection: Connection, manifest: Manifest, notes: str, now_s: float, *, wanted: bool = False
) -> None:
    row = {
        "model": manifest.model,
        "version": manifest.version,
        "manifest": manifest.to_json(),
        "digest": manifest.digest,
        "added_s": now_s,
        "notes": notes,
        "wanted": wanted,
        "state": State.ADDED.value,
        "reason": "",
        "since_s": now_s,
        "profile": None,
    }
    connection.execute(sql.insert(releases).values(row))


def next_version(connection: Connection, model: str) -> int:
    """A number that no release of the model has or had: what was removed does not come back as another."""
    ever = [
        connection.scalar(sql.select(sql.func.max(table.c.version)).where(table.c.model == model))
        for table in (releases, release_events)
    ]
    return 1 + max(number or 0 for number in ever)


def was_added(connection: Connection, model: str, version: int) -> bool:
    event = release_events.c
    added = (event.model == model) & (event.version == version) & (event.what == RELEASE_ADDED)
    return connection.execute(sql.select(event.id).where(added).limit(1)).first() is not None


def set_state(
    connection: Connection, now_s: float, model: str, version: int, state: State, reason: str
) -> None:
    values = {"state": state.value, "reason": reason, "since_s": now_s}
    connection.execute(sql.update(releases).where(is_release(model, version)).values(values))


def move(connection: Connection, now_s: float, manifest: Manifest, state: State, reason: str = "") -> None:
    """To a state that may follow the one it is in now, with its event; raises Overtaken where none may."""
    model, version = manifest.model, manifest.version
    current = connection.scalar(sql.select(releases.c.state).where(is_release(model, version)))
    if current is None or not may_follow(State(current), state):
        raise Overtaken(f"{manifest.name} is {current or 'removed'} and cannot become {state.value}")
    set_state(connection, now_s, model, version, state, reason)
    write_event(connection, now_s, model, version, state.value, reason)


def write_event(
    connection: Connection, now_s: float, model: str, version: int | None, what: str, reason: str
) -> None:
    row = {"at_s": now_s, "model": model, "version": version, "what": what, "reason": reason}
    connection.execute(sql.insert(release_events).values(row))


def is_release(model: str, version: int) -> Any:
    return (releases.c.model == model) & (releases.c.version == version)
