"""Commands that are allowed by role and scope, and in the audit log in the transaction of the change."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sql

from router.core.actions import Action
from router.core.tenant import AuditEntry
from router.store.schema import audit
from router.tenants.rbac import Actor, allows
from router.tenants.records import row_of_audit, touch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from router.store.database import Store


class Forbidden(Exception):
    """The actor may not do this; says nothing of whether its object exists."""


class AlreadyThere(Exception):
    """The name is taken."""


class Audited:
    """Calls `changed` after each commit, so that this process knows at once."""

    def __init__(self, store: Store, changed: Callable[[], object], clock: Callable[[], float]) -> None:
        self._store = store
        self._changed = changed
        self._clock = clock

    @contextmanager
    def _look(self, actor: Actor, action: Action, organisation_id: str | None) -> Iterator[Connection]:
        self.check(actor, action, organisation_id, organisation_id or "")
        with self._store.read() as connection:
            yield connection

    @contextmanager
    def _act(
        self,
        actor: Actor,
        action: Action,
        organisation_id: str | None,
        target: str,
        detail: dict[str, Any] | None = None,
        named: str | None = None,
    ) -> Iterator[tuple[Connection, int]]:
        """One transaction: the change, its number and its audit entry."""
        self.check(actor, action, organisation_id, target)
        entry = self._entry(actor, action, organisation_id, target, detail, named)
        try:
            with self._store.begin() as connection:
                version = self._store.next_change(connection)
                if organisation_id is not None:
                    touch(connection, organisation_id, version)
                yield connection, version
                connection.execute(sql.insert(audit).values(row_of_audit(entry)))
        except sql.exc.IntegrityError as error:
            raise AlreadyThere(f"{action.label}: the name already exists") from error
        except Forbidden:
            write_refusal(self._store, entry)
            raise
        self._changed()

    def check(
        self,
        actor: Actor,
        action: Action,
        organisation_id: str | None,
        target: str,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Raises Forbidden, with an entry in the audit log, where the actor may not do this."""
        if not allows(actor, action, organisation_id):
            write_refusal(self._store, self._entry(actor, action, organisation_id, target, detail))
            raise Forbidden(f"{action.label} is not allowed")

    def _entry(
        self,
        actor: Actor,
        action: Action,
        organisation_id: str | None,
        target: str,
        detail: dict[str, Any] | None = None,
        named: str | None = None,
    ) -> AuditEntry:
        return AuditEntry(
            self._clock(),
            actor.user_id,
            organisation_id,
            named or action.label,
            target,
            True,
            detail or {},
            actor.key_id,
            actor.address,
        )

    def _write(self, entry: AuditEntry) -> None:
        with self._store.begin() as connection:
            connection.execute(sql.insert(audit).values(row_of_audit(entry)))


class PlatformCommands:
    """Commands on what belongs to no organisation, of one actor; those not allowed are on record too."""

    _read_action: ClassVar[Action]

    def __init__(self, store: Store, actor: Actor, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._actor = actor
        self._clock = clock

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """To read with the functions of `records`, all of one moment."""
        self._check(self._read_action, self._read_action.label, "")
        with self._store.read() as connection:
            yield connection

    def _check(self, action: Action, label: str, target: str) -> None:
        if not allows(self._actor, action, None):
            write_refusal(self._store, self._entry(label, target, {}))
            raise Forbidden(f"{action.label} is not allowed")

    def _record(
        self, connection: Connection, label: str, target: str, detail: dict[str, Any] | None = None
    ) -> None:
        connection.execute(sql.insert(audit).values(row_of_audit(self._entry(label, target, detail or {}))))

    def _entry(self, label: str, target: str, detail: dict[str, Any]) -> AuditEntry:
        actor = self._actor
        return AuditEntry(
            self._clock(), actor.user_id, None, label, target, True, detail, actor.key_id, actor.address
        )


def write_refusal(store: Store, entry: AuditEntry) -> None:
    """Who is refused the same again and again fills no disk: the number of times is on record instead."""
    times = store.repeats.note((entry.actor, entry.key_id, entry.action), entry.at_s)
    if times is None:
        return
    detail = {**entry.detail, "times": times} if times > 1 else entry.detail
    with store.begin() as connection:
        refused = replace(entry, allowed=False, detail=detail)
        connection.execute(sql.insert(audit).values(row_of_audit(refused)))
