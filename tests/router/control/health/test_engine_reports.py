"""Engines that are asked how they are, over a real connection to a stand-in for Triton."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.engine_report import EngineReport
from python_backend.wire.tiers import Tier
from router.control.health import engine_reports
from router.control.health.engine_reports import EngineReports
from router.core.manifest import Kind, Manifest
from router.core.objective import Objective
from router.routing.replicas import Fleet, Replica
from router.triton.server import TritonServer
from tests.fakes.triton_server import FakeTriton
from tests.waiting import until

MANIFEST = Manifest("smol", 1, Kind.TEXT, ("smol.1.tensorrt_llm", "smol.1"), "smol.1.tensorrt_llm")
REPORT = EngineReport(
    *(8, 512, 8, 512, 100, 4, 16, 2, 0, True), learned=LearnedStepCost(StepCost(10, 0.1, 0.2), 40, 0.1)
)


@dataclass
class World:
    triton: FakeTriton
    fleet: Fleet
    asking: EngineReports
    now_s: float = 50.0
    targets: dict[Tier, float | None] = field(default_factory=dict)

    @property
    def replica(self) -> Replica:
        return self.fleet.set_of(MANIFEST).replicas[0]


@asynccontextmanager
async def world(report: EngineReport | None = REPORT, manifest: Manifest = MANIFEST) -> AsyncIterator[World]:
    triton = await FakeTriton(report=report).start()
    server = TritonServer("triton-0", triton.url)
    fleet = Fleet([server])
    fleet.set_of(manifest).replicas[0].is_loaded = True
    made: World

    def objective_of(model: str, tier: Tier) -> Objective:
        target_ms = made.targets.get(tier)
        return Objective(model, tier, inter_token_s=None if target_ms is None else target_ms / 1000)

    asking = EngineReports(fleet, objective_of, clock=lambda: made.now_s)
    made = World(triton, fleet, asking)
    try:
        yield made
    finally:
        await server.close()
        await triton.stop()


async def test_a_replica_keeps_its_engines_report_and_its_time() -> None:
    async with world() as there:
        assert (there.replica.report, there.replica.reported_s) == (None, -inf)
        await there.asking.ask_all()
        assert (there.replica.report, there.replica.reported_s) == (REPORT, 50)
        assert (there.replica.open_count, there.replica.begun) == (0, 0), "it is no work"
        assert there.triton.configured == []


async def test_an_engine_whose_steps_go_on_is_heard_of_before_the_first_token() -> None:
    async with world(report=replace(REPORT, step_count=3)) as there:
        for _ in range(2):
            await there.asking.ask_all()
        assert there.replica.heard_s == -inf, "it made no step between the two"
        there.now_s, there.triton.report = 55, replace(REPORT, step_count=4)
        await there.asking.ask_all()
        assert there.replica.heard_s == 55


async def test_an_engine_is_sent_objectives_that_it_does_not_have() -> None:
    async with world() as there:
        there.targets = {Tier.INTERACTIVE: 20.5, Tier.STANDARD: 50, Tier.BATCH: None}
        await there.asking.ask_all()
        told = {"inter_token_ms": {"interactive": 20.5, "standard": 50, "batch": None}}
        assert there.triton.configured == [told]
        there.triton.report = replace(REPORT, inter_token_ms={"interactive": 20.5, "standard": 50.0})
        await there.asking.ask_all()
        assert there.triton.configured == [told], "it has them"
        there.targets = {}
        await there.asking.ask_all()
        assert there.triton.configured[1:] == [{"inter_token_ms": dict.fromkeys(told["inter_token_ms"])}]


async def test_an_engine_that_refuses_objectives_is_not_sent_them_again_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as there:
        there.targets, there.triton.refusal = {Tier.BATCH: 5}, "invalid_request: no"
        for _ in range(3):
            await there.asking.ask_all()
        assert (len(there.triton.configured), there.triton.reports) == (1, 3)
        assert "invalid_request: no" in caplog.text
        there.now_s += 61
        await there.asking.ask_all()
        assert len(there.triton.configured) == 2


async def test_an_engine_without_reports_is_asked_once_a_minute() -> None:
    async with world(report=None) as there:
        for _ in range(3):
            await there.asking.ask_all()
        assert (there.replica.report, len(there.triton.stops)) == (None, 1)
        there.now_s += 61
        there.triton.report = REPORT
        await there.asking.ask_all()
        assert there.replica.report == REPORT


async def test_an_engine_that_does_not_answer_keeps_its_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_reports, "_TIMEOUT_S", 0.05)
    async with world() as there:
        await there.asking.ask_all()
        there.now_s += 1
        there.triton.report_pause_s = 1
        await there.asking.ask_all()
        assert (there.replica.report, there.replica.reported_s) == (REPORT, 50)


async def test_a_replica_that_is_down_is_not_asked_and_loses_its_report() -> None:
    async with world() as there:
        await there.asking.ask_all()
        there.replica.mark_down("it died", 51, reviving=True)
        await there.asking.ask_all()
        assert (there.replica.report, there.triton.reports) == (None, 1)
        assert there.replica.reported_s == -inf, "what it will say when it is back is not known"


@pytest.mark.parametrize(
    "manifest",
    [Manifest("e", 1, Kind.EMBEDDINGS, ("embeddings",)), Manifest("t", 1, Kind.TENSORS, ("t.1",))],
)
async def test_models_without_an_engine_are_not_asked(manifest: Manifest) -> None:
    async with world(manifest=manifest) as there:
        await there.asking.ask_all()
        assert there.triton.reports == 0


async def test_engine_reports_go_on_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_reports, "_PERIOD_S", 0.01)
    async with world() as there:

        def fail(model: str, tier: Tier) -> Objective:
            raise RuntimeError("the objectives are lost")

        asking = EngineReports(there.fleet, fail)
        with caplog.at_level(logging.ERROR):
            task = asyncio.create_task(asking.run())
            await until(lambda: there.triton.reports > 1 and "the objectives are lost" in caplog.text)
            task.cancel()
            await asyncio.wait([task])
        assert there.triton.reports > 1
        assert "the objectives are lost" in caplog.text
        assert there.replica.report == REPORT
