from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import msgspec
import pytest
import sqlalchemy as sql

from router.core.tenant import Role, UsageRecord
from router.store.database import Store
from router.store.schema import leases, spending
from router.store.schema import usage as usage_table
from router.tenants.administration import Administration
from router.tenants.budget import LEASE_S, LeaseAnswer, LeaseAsk
from router.tenants.limits import Allowance
from router.tenants.rbac import SYSTEM
from router.tenants.records import usage_summary
from router.tenants.treasury import Treasury
from tests.router.tenants.values import DAY, MONTH, NOW_S, usage

BUDGET = 100_000


def ask(need: int, cost: int | None = None, give_back: int = 0) -> LeaseAsk:
    return LeaseAsk("org-1", MONTH, BUDGET, need, need if cost is None else cost, give_back)


def spent_and_leased(store: Store) -> tuple[int, int]:
    """Read in one statement, so that nothing can happen in between."""
    one = sql.select(sql.func.coalesce(sql.func.sum(spending.c.spent), 0)).where(
        spending.c.subject == "org-1"
    )
    two = sql.select(sql.func.coalesce(sql.func.sum(leases.c.amount), 0)).where(leases.c.subject == "org-1")
    with store.read() as connection:
        row = connection.execute(sql.select(one.scalar_subquery(), two.scalar_subquery())).one()
    return int(row[0]), int(row[1])


def usage_of(row: sql.RowMapping) -> UsageRecord:
    values = {name: row[name] for name in UsageRecord.__struct_fields__}
    return UsageRecord(**{**values, "stages": msgspec.json.decode(row["stages"])})


def test_a_record_counts_once_however_often_it_is_delivered(store: Store) -> None:
    treasury = Treasury(store, "a")
    records = [usage(f"request-{number}", cost=10) for number in range(5)]
    assert treasury.charge(records[:3]) == 3
    assert treasury.charge(records) == 2
    assert Treasury(store, "b").charge([*records, *records]) == 0
    assert treasury.charge([]) == 0
    assert treasury.spent("org-1", MONTH) == treasury.spent("key-1", MONTH) == 50
    assert treasury.spent("org-1", "2026-12") == 0
    with store.read() as connection:
        rows = connection.execute(sql.select(usage_table).order_by(usage_table.c.request_id)).mappings()
        assert [usage_of(row) for row in rows] == records


def test_the_local_tenant_which_is_its_own_key_is_charged_once(store: Store) -> None:
    treasury = Treasury(store, "a")
    treasury.charge([usage("request-1", 10, organisation_id="local", key_id="local")])
    assert treasury.spent("local", MONTH) == 10


def test_usage_is_summed_by_the_requested_groups(store: Store) -> None:
    Treasury(store, "a").charge(
        [
            usage("request-1", 10, model="smol"),
            usage("request-2", 20, model="large"),
            usage("request-3", 30, model="large", started_s=NOW_S + 86400),
            usage("request-4", 40, organisation_id="org-2", key_id="key-2"),
        ]
    )
    with store.read() as connection:
        by_model = usage_summary(connection, "org-1", ("model",), DAY, "2026-11-16")
        assert [(row.group, row.requests, row.cost) for row in by_model] == [
            (("large",), 2, 50),
            (("smol",), 1, 10),
        ]
        by_day = usage_summary(connection, None, ("organisation", "day"), DAY, "2026-11-16")
        assert [(row.group, row.cost) for row in by_day] == [
            (("org-1", DAY), 30),
            (("org-1", "2026-11-16"), 30),
            (("org-2", DAY), 40),
        ]
        (total,) = usage_summary(connection, None, (), DAY, DAY)
        assert (total.requests, total.prompt_tokens, total.cached_tokens, total.completion_tokens) == (
            3,
            21,
            6,
            15,
        )
        (nothing,) = usage_summary(connection, "org-3", (), DAY, DAY)
        assert (nothing.requests, nothing.cost) == (0, 0)
        with pytest.raises(ValueError, match="by: colour: allowed are organisation, user, key, model, day"):
            usage_summary(connection, None, ("colour",), DAY, DAY)


def test_leases_and_spending_together_fit_the_budget(store: Store) -> None:
    one, other = Treasury(store, "one"), Treasury(store, "other")
    assert one.lease(ask(60_000), NOW_S) == LeaseAnswer(60_000, continued=False)
    assert other.lease(ask(50_000), NOW_S) == LeaseAnswer(0, continued=False)
    assert other.lease(ask(40_000), NOW_S) == LeaseAnswer(40_000, continued=False)
    one.charge([usage("request-1", cost=25_000)])
    assert spent_and_leased(store) == (25_000, 75_000)
    assert one.lease(ask(1), NOW_S) == LeaseAnswer(0, continued=True)
    other.give_back(ask(0, give_back=30_000), NOW_S)
    assert one.lease(ask(30_000), NOW_S) == LeaseAnswer(30_000, continued=True)


def test_an_expired_lease_is_free_for_others_and_its_owner_learns_it(store: Store) -> None:
    one, other = Treasury(store, "one"), Treasury(store, "other")
    one.lease(ask(BUDGET), NOW_S)
    assert other.lease(ask(1), NOW_S + LEASE_S - 1).amount == 0
    one.lease(ask(0), NOW_S + 60)
    assert other.lease(ask(1), NOW_S + LEASE_S).amount == 0
    assert other.lease(ask(BUDGET), NOW_S + 60 + LEASE_S).amount == BUDGET
    assert one.lease(ask(0, cost=10), NOW_S + 61 + LEASE_S) == LeaseAnswer(0, continued=False)
    one.give_back(ask(0, give_back=BUDGET), NOW_S + 61 + LEASE_S)
    assert spent_and_leased(store) == (0, BUDGET)


def test_a_lease_grown_by_a_debt_conserves_the_sum(store: Store) -> None:
    """A request that cost more than its lease held leaves the lease below zero, not money out of nowhere."""
    treasury = Treasury(store, "one")
    treasury.lease(ask(7_000), NOW_S)
    treasury.charge([usage("request-1", cost=9_000)])
    assert sum(spent_and_leased(store)) == 7_000


def test_a_restarted_process_charges_its_spool_and_ends_its_old_leases(store: Store) -> None:
    Treasury(store, "one").lease(ask(60_000), NOW_S)
    Treasury(store, "other").lease(ask(5_000), NOW_S)
    successor = Treasury(store, "one")
    successor.charge([usage("request-1", cost=100)])
    successor.release()
    assert spent_and_leased(store) == (100, 5_000)


def test_a_deleted_organisation_owes_for_what_it_was_still_running(
    store: Store, administration: Administration
) -> None:
    organisation = administration.create_organisation(SYSTEM, "acme")
    administration.create_user(SYSTEM, organisation.id, "ann", Role.OWNER)
    treasury = Treasury(store, "one")
    treasury.charge([usage("request-1", organisation_id=organisation.id)])
    administration.delete_organisation(SYSTEM, organisation.id)
    records = [usage("request-2", organisation_id=organisation.id), usage("request-3")]
    assert treasury.charge(records) == 2
    assert treasury.spent(organisation.id, MONTH) == 20
    assert administration.list_organisations(SYSTEM) == []


def router(store: Store, name: str, ids: Callable[[], int], stop: threading.Event) -> int:
    """Spends from leases as a router does, until the store has nothing more to give."""
    treasury, allowance, spent = Treasury(store, name), Allowance("org-1", BUDGET), 0
    while not stop.is_set():
        if not allowance.covers(700, 0, MONTH):
            wanted = allowance.ask(700, MONTH)
            allowance.granted(wanted, treasury.lease(wanted, NOW_S), 0)
            if not allowance.covers(700, 0, MONTH):
                break
        records = list[UsageRecord]()
        while allowance.covers(700, 0, MONTH) and len(records) < 10:
            allowance.end(allowance.take(700), 700, 600)
            records.append(usage(f"request-{ids()}", cost=600))
        spent += 600 * treasury.charge(records)
    rest = allowance.give_back()
    if rest is not None:
        treasury.give_back(rest, NOW_S)
    return spent


def test_many_concurrent_routers_spend_the_budget_and_never_more(store: Store) -> None:
    numbers, stop, sums = count(), threading.Event(), list[int]()

    def watch() -> None:
        while not stop.wait(0.002):
            sums.append(sum(spent_and_leased(store)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            runs = [pool.submit(router, store, f"router-{n}", lambda: next(numbers), stop) for n in range(8)]
            spent = sum(run.result() for run in runs)
    finally:
        stop.set()
        watcher.join()
    assert sums
    assert max(sums) <= BUDGET
    assert spent_and_leased(store) == (spent, 0)
    assert BUDGET - 8 * 700 <= spent <= BUDGET
