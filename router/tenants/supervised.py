"""What the operator's offices have in common: one actor, one right to read, an audit entry for each act."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sql

from router.core.tenant import AuditEntry
from router.store.schema import audit
from router.tenants.audited import Forbidden
from router.tenants.rbac import Action, Actor, allows
from router.tenants.rows import row_of_audit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from router.store.database import Store


class SupervisedOffice:
    """Whatever belongs to no organisation: an act that is not allowed is on record too."""

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
        if allows(self._actor, action, None):
            return
        with self._store.begin() as connection:
            self._record(connection, label, target, is_allowed=False)
        raise Forbidden(f"{action.label} is not allowed")

    def _record(
        self,
        connection: Connection,
        label: str,
        target: str,
        detail: dict[str, Any] | None = None,
        is_allowed: bool = True,
    ) -> None:
        entry = AuditEntry(self._clock(), self._actor.user_id, None, label, target, is_allowed, detail or {})
        connection.execute(sql.insert(audit).values(row_of_audit(entry)))
