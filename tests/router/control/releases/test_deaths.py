"""Deaths of processes, from the router in control to the store and into a rollout's figures."""

from __future__ import annotations

import pytest
import sqlalchemy as sql

from router.control.releases import records
from router.control.releases.deaths import DeathRecorder, deaths_in
from router.control.releases.faults import Deaths
from router.control.releases.plan import Plan
from router.control.releases.states import State
from router.store.database import Store, StoreAccess
from tests.router.control.releases.values import MODEL, manifest, office, put
from tests.router.tenants.values import NOW_S


@pytest.fixture
def rolled_out(lite: Store) -> Store:
    for version in (1, 2):
        office(lite).add(manifest(version))
        put(lite, version, State.READY)
    office(lite).promote(MODEL, 1)
    office(lite).begin_rollout(MODEL, 2, Plan())
    return lite


def counted(store: Store) -> Deaths:
    with store.read() as connection:
        (rollout,) = records.list_rollouts(connection, MODEL)
        return deaths_in(connection, rollout)


async def test_deaths_since_a_rollout_began_are_counted_for_each_release(rolled_out: Store) -> None:
    access = StoreAccess(rolled_out)
    earlier = DeathRecorder(access, lambda: True, lambda: NOW_S - 1)
    recorder = DeathRecorder(access, lambda: True, lambda: NOW_S + 1)
    earlier.died(manifest(2), "triton-0", "a process of the model died")
    recorder.died(manifest(1), "triton-0", "the model does not answer")
    recorder.died(manifest(2), "triton-1", "a process of the model died")
    recorder.died(manifest(2, "other"), "triton-1", "a process of the model died")
    for each in (earlier, recorder, recorder):
        await each.write()
    access.close()
    assert counted(rolled_out) == Deaths(1, 1, "on triton-1: a process of the model died")
    with rolled_out.read() as connection:
        told = [(each.version, each.what) for each in records.list_events(connection, MODEL)]
    assert told.count((2, "died")) == 2, "the history has them all"


async def test_a_router_that_is_not_in_control_writes_no_deaths(rolled_out: Store) -> None:
    access = StoreAccess(rolled_out)
    recorder = DeathRecorder(access, lambda: False)
    recorder.died(manifest(2), "triton-0", "a process of the model died")
    await recorder.write()
    access.close()
    assert counted(rolled_out) == Deaths()


async def test_a_death_that_cannot_be_written_is_written_later(
    rolled_out: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = StoreAccess(rolled_out)
    recorder = DeathRecorder(access, lambda: True, lambda: NOW_S)
    recorder.died(manifest(2), "triton-0", "a process of the model died")

    def away() -> object:
        raise sql.exc.OperationalError("insert", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(rolled_out, "begin", away)
        await recorder.write()
    await recorder.write()
    access.close()
    assert counted(rolled_out).canary == 1
