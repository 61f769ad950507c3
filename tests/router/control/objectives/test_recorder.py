from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pytest
import sqlalchemy as sql

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.control.objectives import records
from router.control.objectives.monitor import WINDOW_S, ObjectiveMonitor
from router.control.objectives.recorder import ObjectiveRecorder
from router.control.objectives.standing import Figures
from router.core.objective import Metric
from router.store.database import StoreAccess
from router.store.schema import objective_figures
from tests.router.tenants.values import NOW_S
from tests.waiting import soon

MODEL = "smol"


@dataclass
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Desk:
    access: StoreAccess
    clock: Clock
    monitor: ObjectiveMonitor
    writes: int = 0

    def recorder(self, process: str = "one") -> ObjectiveRecorder:
        return ObjectiveRecorder(self.access, self.monitor, process, self.clock)

    def samples(self) -> int:
        with self.access.store.read() as connection:
            found = records.read_measured(connection, self.clock.now_s)
        return sum(sum(counts.values()) for each in found.values() for counts in each.counts.values())

    def rows(self) -> list[tuple[str, float]]:
        with self.access.store.read() as connection:
            found = connection.execute(sql.select(objective_figures).order_by(objective_figures.c.router))
            return [(row.router, row.at_s) for row in found]


@pytest.fixture
def desk(access: StoreAccess) -> Desk:
    clock = Clock()
    return Desk(access, clock, ObjectiveMonitor(clock))


async def test_recorded_measurements_are_readable_by_others_and_add_up(desk: Desk) -> None:
    desk.monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    desk.monitor.inter_token(MODEL, Tier.STANDARD, 0.05, 3)
    desk.monitor.refused(MODEL, Tier.STANDARD)
    await desk.recorder("one").write()
    await desk.recorder("two").write()
    with desk.access.store.read() as connection:
        found = records.read_measured(connection, NOW_S, MODEL)[MODEL, Tier.STANDARD]
    assert {metric: sum(counts.values()) for metric, counts in found.counts.items()} == {
        Metric.FIRST_TOKEN: 2,
        Metric.INTER_TOKEN: 6,
        Metric.END_TO_END: 0,
    }
    assert found.refused == 2


async def test_only_changes_are_written_and_a_heartbeat_now_and_then(desk: Desk) -> None:
    recorder = desk.recorder()
    await recorder.write()
    assert desk.rows() == [], "nothing was measured"
    desk.monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    await recorder.write()
    desk.clock.now_s += 5
    await recorder.write()
    assert desk.rows() == [("one", NOW_S)]
    desk.clock.now_s += records.FRESH_S / 3
    await recorder.write()
    assert desk.rows() == [("one", desk.clock.now_s)]
    desk.clock.now_s += WINDOW_S
    assert desk.samples() == 0
    await recorder.write()
    assert desk.samples() == 0
    written_s = desk.clock.now_s
    desk.clock.now_s += records.FRESH_S
    await recorder.write()
    assert desk.rows() == [("one", written_s)], "of nothing there is no news"


async def test_records_of_dead_routers_are_deleted_in_the_end(desk: Desk) -> None:
    desk.monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    await desk.recorder("dead").write()
    desk.clock.now_s += 3601
    desk.monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    await desk.recorder("living").write()
    assert [router for router, _ in desk.rows()] == ["living"]


async def test_while_the_store_is_unreachable_the_recorder_waits_and_logs_it_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = desk.recorder()
    desk.monitor.first_token(MODEL, Tier.STANDARD, 0.5)

    async def refuse(act: object) -> object:
        raise InflightError.from_text("overloaded: the store cannot be reached")

    with monkeypatch.context() as away, caplog.at_level(logging.WARNING):
        away.setattr(desk.access, "write", refuse)
        await recorder.write()
        await recorder.write()
    assert len(caplog.records) == 1
    await recorder.write()
    assert desk.samples() == 1


async def test_the_recorder_goes_on_after_an_unexpected_error(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, again, times = desk.recorder(), asyncio.Event(), iter(range(3))

    async def fail() -> None:
        if next(times):
            again.set()
        raise RuntimeError("odd")

    monkeypatch.setattr(ObjectiveRecorder, "_every_s", 0.001)
    monkeypatch.setattr(recorder, "write", fail)
    running = asyncio.create_task(recorder.run())
    await soon(again.wait())
    monkeypatch.undo()
    running.cancel()
    await asyncio.wait([running])
    assert "could not be written" in caplog.text


async def test_unwritten_measurements_are_written_when_a_router_stops(desk: Desk) -> None:
    running = asyncio.create_task(desk.recorder().run())
    await asyncio.sleep(0)
    desk.monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    running.cancel()
    await asyncio.wait([running])
    assert desk.samples() == 1


def test_a_metric_that_a_newer_router_writes_is_left_out() -> None:
    found = records.figures_from_json('{"first_token":[[1,2]],"energy":[[3,4]]}')
    assert found == Figures({Metric.FIRST_TOKEN: {1: 2}})
