"""Money in the store: usage records charged once each, and leases that together fit the budget."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.store.schema import leases, spending, usage
from router.tenants.budget import LEASE_S, LeaseAnswer, LeaseAsk, lease_size, month_of
from router.tenants.records import USAGE_NAMES, row_of_usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from router.core.tenant import UsageRecord
    from router.store.database import Store


class Treasury:
    """The store as one process sees it: `process` owns its leases, also after a restart."""

    def __init__(self, store: Store, process: str) -> None:
        self._store = store
        self._process = process

    def charge(self, records: Sequence[UsageRecord]) -> int:
        """Records usage, its cost moved from this process's leases to what is spent; tells how many were new.

        Records that are there already change nothing. Who is deleted owes for what was still running.
        """
        by_id = {record.request_id: record for record in records}
        if not by_id:
            return 0
        with self._store.begin() as connection:
            rows = [row_of_usage(record) for record in by_id.values()]
            new = self._store.insert_rows(connection, usage, USAGE_NAMES, rows, returning="request_id")
            costs: Counter[tuple[str, str]] = Counter()
            for record in (by_id[request_id] for request_id in new):
                month = month_of(record.started_s)
                costs[record.organisation_id, month] += record.cost
                if record.key_id != record.organisation_id:  # the local tenant has no keys
                    costs[record.key_id, month] += record.cost
            # In one order everywhere, so that two processes never wait for each other.
            for (subject, month), cost in sorted(costs.items()):
                self._move_to_spent(connection, subject, month, cost)
            return len(new)

    def lease(self, ask: LeaseAsk, now_s: float) -> LeaseAnswer:
        """Extends this process's lease and lets it grow by what is needed, as far as the budget goes."""
        with self._store.begin() as connection:
            spent = self._lock(connection, ask.subject, ask.month)
            here = _of(leases, ask.subject, ask.month)
            connection.execute(sql.delete(leases).where(here & (leases.c.expires_s <= now_s)))
            held = connection.execute(sql.select(leases.c.process, leases.c.amount).where(here))
            amounts = {row.process: int(row.amount) for row in held}
            continued = self._process in amounts
            need = ask.need if continued else ask.cost
            amount = lease_size(ask.budget, spent, sum(amounts.values()), need)
            changed = {"amount": leases.c.amount + amount, "expires_s": now_s + LEASE_S}
            if continued:
                connection.execute(
                    sql.update(leases).where(self._mine(ask.subject, ask.month)).values(changed)
                )
            elif amount:
                row = {"subject": ask.subject, "month": ask.month, "process": self._process}
                new = {**row, "amount": amount, "expires_s": now_s + LEASE_S}
                connection.execute(sql.insert(leases).values(new))
            return LeaseAnswer(amount, continued)

    def give_back(self, ask: LeaseAsk, now_s: float) -> None:
        """What an expired lease held is free already."""
        with self._store.begin() as connection:
            self._lock(connection, ask.subject, ask.month)
            mine = self._mine(ask.subject, ask.month) & (leases.c.expires_s > now_s)
            smaller = {"amount": leases.c.amount - ask.give_back}
            connection.execute(sql.update(leases).where(mine).values(smaller))

    def release(self) -> None:
        """Ends all leases of this process; right only when everything it has spent is charged."""
        with self._store.begin() as connection:
            connection.execute(sql.delete(leases).where(leases.c.process == self._process))

    def spent(self, subject: str, month: str) -> int:
        with self._store.read() as connection:
            return int(connection.scalar(_spent(subject, month)) or 0)

    def _lock(self, connection: Connection, subject: str, month: str) -> int:
        """What is spent; nobody else can lease or charge the same budget until the transaction ends."""
        self._add_spent(connection, subject, month, 0)
        return int(connection.execute(_spent(subject, month)).scalar_one())

    def _add_spent(self, connection: Connection, subject: str, month: str, cost: int) -> None:
        row = {"subject": subject, "month": month, "spent": 0}
        connection.execute(self._store.insert_new(spending).values(row))
        here = _of(spending, subject, month)
        connection.execute(sql.update(spending).where(here).values(spent=spending.c.spent + cost))

    def _move_to_spent(self, connection: Connection, subject: str, month: str, cost: int) -> None:
        self._add_spent(connection, subject, month, cost)
        smaller = {"amount": leases.c.amount - cost}
        connection.execute(sql.update(leases).where(self._mine(subject, month)).values(smaller))

    def _mine(self, subject: str, month: str) -> sql.ColumnElement[bool]:
        return _of(leases, subject, month) & (leases.c.process == self._process)


def _of(table: sql.Table, subject: str, month: str) -> sql.ColumnElement[bool]:
    return (table.c.subject == subject) & (table.c.month == month)


def _spent(subject: str, month: str) -> sql.Select[Any]:
    return sql.select(spending.c.spent).where(_of(spending, subject, month))
