from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.core.tenant import Caller, Limits, Price, Role
from router.tenants.administration import Administration
from router.tenants.audited import Forbidden
from router.tenants.budget import LeaseAnswer, LeaseAsk, day_of
from router.tenants.keys import Refused
from router.tenants.ledger import Reservation
from router.tenants.limits import Limit, Refusal
from router.tenants.rbac import SYSTEM, Actor
from router.tenants.tenancy import Tenancy, TenancySettings
from tests.router.tenants.postgres import Postgres
from tests.router.tenants.values import MONTH, PEPPER, usage
from tests.waiting import soon, until


@pytest.fixture
async def pair(store_url: str, tmp_path: Path) -> AsyncIterator[tuple[Tenancy, Tenancy]]:
    """Two routers with one store."""
    both = [
        Tenancy(
            TenancySettings(store_url, PEPPER, tmp_path / name, poll_s=0.05, deliver_s=0.05, upkeep_s=0.05)
        )
        for name in ("one", "two")
    ]
    for tenancy in both:
        tenancy.start()
    yield both[0], both[1]
    for tenancy in both:
        tenancy.stop()


def set_up(do: Administration) -> tuple[str, str, str]:
    organisation = do.create_organisation(SYSTEM, "acme")
    do.set_limits(SYSTEM, organisation.id, Limits(monthly_budget=10_000))
    do.set_price(SYSTEM, Price("smol", 1, 1, 1))
    user = do.create_user(SYSTEM, organisation.id, "ann", Role.MEMBER)
    # The key comes last: a router that knows it knows the limits and prices too.
    key, text = do.create_key(Actor.of(user), organisation.id, user.id, "laptop")
    return organisation.id, key.id, text


def known(tenancy: Tenancy, text: str) -> Caller:
    caller = tenancy.keyring.verify(text, time.time())
    assert isinstance(caller, Caller)
    return caller


async def test_a_change_is_known_here_at_once_and_on_other_routers_within_a_second(
    pair: tuple[Tenancy, Tenancy],
) -> None:
    one, two = pair
    organisation_id, key_id, text = await one.administer(set_up)
    known(one, text)
    await until(lambda: isinstance(two.keyring.verify(text, time.time()), Caller))
    assert two.catalogue.prices["smol"].prompt == 1
    await one.administer(lambda do: do.revoke_key(SYSTEM, organisation_id, key_id))
    assert isinstance(one.keyring.verify(text, time.time()), Refused)
    await until(lambda: isinstance(two.keyring.verify(text, time.time()), Refused))
    assert TenancySettings("", PEPPER, Path()).poll_s <= 0.5, "so often others look"
    with pytest.raises(Forbidden):
        await one.administer(lambda do: do.list_organisations(Actor("eve", "org-2", Role.OWNER)))


async def test_a_burst_on_two_routers_spends_the_budget_exactly_and_is_billed_once(
    pair: tuple[Tenancy, Tenancy],
) -> None:
    one, two = pair
    organisation_id, key_id, text = await one.administer(set_up)
    await until(lambda: isinstance(two.keyring.verify(text, time.time()), Caller))
    now_s = time.time()

    async def request(tenancy: Tenancy, number: int) -> bool:
        answer = await tenancy.reserve(known(tenancy, text), tokens=10, cost=100)
        if isinstance(answer, Refusal):
            assert answer.limit is Limit.BUDGET
            return False
        answer.settle(10, 100)
        record = usage(
            f"request-{id(tenancy)}-{number}",
            100,
            organisation_id=organisation_id,
            key_id=key_id,
            started_s=now_s,
        )
        tenancy.record(record)
        return True

    calls = [request(tenancy, number) for number in range(80) for tenancy in pair]
    admitted = sum(await asyncio.gather(*calls))
    assert 90 <= admitted <= 100  # the rest is in leases, too small to be used
    one.ledger.check()
    two.ledger.check()

    async def cost() -> int:
        day = day_of(now_s)
        (total,) = await one.administer(lambda do: do.usage(SYSTEM, organisation_id, (), day, day))
        return total.cost

    await until(lambda: not any(tenancy.spool.pending or tenancy.spool.bytes for tenancy in pair))
    assert await cost() == admitted * 100
    assert one.worker.is_well


async def test_a_lease_survives_the_cancelled_request_that_asked_for_it(
    pair: tuple[Tenancy, Tenancy],
) -> None:
    one, _ = pair
    _, _, text = await one.administer(set_up)
    store_answers = threading.Event()
    one.worker.submit(store_answers.wait)
    leaving = asyncio.create_task(one.reserve(known(one, text), tokens=10, cost=10_000))
    await asyncio.sleep(0.01)
    leaving.cancel()
    store_answers.set()
    # All of the budget is in that lease: a second one would get nothing.
    answer = await one.reserve(known(one, text), tokens=10, cost=10_000)
    assert isinstance(answer, Reservation)
    answer.cancel()


async def test_a_store_that_hangs_does_not_block_requests(
    pair: tuple[Tenancy, Tenancy], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    _, _, text = await one.administer(set_up)
    monkeypatch.setattr("router.tenants.tenancy._LEASE_WAIT_S", 0.05)
    store_answers = threading.Event()
    one.worker.submit(store_answers.wait)
    refusal = await soon(one.reserve(known(one, text), tokens=10, cost=100))
    assert isinstance(refusal, Refusal)
    assert refusal.limit is Limit.LEASE
    store_answers.set()


async def test_one_failed_lease_does_not_end_the_upkeep_of_the_others(
    pair: tuple[Tenancy, Tenancy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = pair
    asked: list[str] = []

    def lease(ask: LeaseAsk, now_s: float) -> LeaseAnswer:
        asked.append(ask.subject)
        raise RuntimeError("a defect")

    monkeypatch.setattr(
        one.ledger, "upkeep", lambda now_ns: [LeaseAsk("a", MONTH, 1), LeaseAsk("b", MONTH, 1)]
    )
    monkeypatch.setattr(one._treasury, "lease", lease)
    upkeep = asyncio.create_task(one.keep_leases())
    await until(lambda: len(asked) >= 4)
    upkeep.cancel()
    assert asked[:4] == ["a", "b", "a", "b"]
    assert "a lease could not be renewed" in caplog.text


async def test_the_last_records_are_in_the_store_after_a_stop(store_url: str, tmp_path: Path) -> None:
    settings = TenancySettings(store_url, PEPPER, tmp_path / "spool", deliver_s=60)
    tenancy = Tenancy(settings)
    tenancy.start()
    organisation_id, _, text = await tenancy.administer(set_up)
    answer = await tenancy.reserve(known(tenancy, text), 1, 100)
    assert isinstance(answer, Reservation)
    upkeep = asyncio.create_task(tenancy.keep_leases())
    tenancy.record(usage("request-1", organisation_id=organisation_id))
    upkeep.cancel()
    tenancy.stop()
    again = Tenancy(settings)
    again.start()
    day = day_of(usage("x").started_s)
    (total,) = await again.administer(lambda do: do.usage(SYSTEM, organisation_id, (), day, day))
    assert total.requests == 1
    again.stop()


async def test_while_postgresql_is_unreachable_known_keys_work_and_usage_waits(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new_database("goes_away")
    tenancy = Tenancy(TenancySettings(url, PEPPER, tmp_path / "spool", poll_s=0.05, deliver_s=0.05))
    tenancy.start()
    organisation_id, _, text = await tenancy.administer(set_up)
    with postgres.connect() as connection:
        connection.execute("ALTER DATABASE goes_away ALLOW_CONNECTIONS false")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'goes_away'"
        )
        await until(lambda: not tenancy.worker.is_well)
        answer = await tenancy.reserve(known(tenancy, text), 1, 100)
        assert isinstance(answer, Refusal)
        assert answer.limit is Limit.LEASE
        for number in range(50):
            tenancy.record(usage(f"request-{number}", organisation_id=organisation_id))
        await until(lambda: not tenancy.spool.pending and tenancy.spool.bytes > 0)
        connection.execute("ALTER DATABASE goes_away ALLOW_CONNECTIONS true")
    await until(lambda: tenancy.worker.is_well and not tenancy.spool.bytes)
    day = day_of(usage("x").started_s)
    (total,) = await tenancy.administer(lambda do: do.usage(SYSTEM, organisation_id, (), day, day))
    assert total.requests == 50
    tenancy.stop()
