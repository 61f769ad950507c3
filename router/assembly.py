"""What goes on behind the requests for as long as the router runs: reading, probing, measuring, tuning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.control.health.engine_reports import EngineReports
from router.control.health.prober import Prober
from router.control.health.vital_signs import ProbeLimits
from router.control.objectives.recorder import FigureRecorder
from router.control.peers.peer_sync import Exchange, open_board
from router.control.releases.adoption import adopt, retire
from router.control.releases.canary_runner import CanaryRunner
from router.control.releases.controller import Controller
from router.control.releases.golden import GoldenRunner
from router.control.releases.snapshot import ReleaseBook
from router.control.releases.steps import Tools
from router.control.tuning.step_keeper import StepKeeper
from router.control.tuning.tuner import Tuner, TuningSettings
from router.routing.builder import Builder, built_in_embeddings, built_in_text
from router.routing.checkpoint import CONTEXT_TOKENS
from router.routing.generation import FleetPipeline
from router.routing.replicas import FleetSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextlib import AsyncExitStack

    from router.core.manifest import Manifest
    from router.parts import Parts
    from router.routing.replicas import Fleet
    from router.settings import Settings
    from router.store.access import StoreAccess


async def keep_releases(settings: Settings, parts: Parts, fleet: Fleet, closing: AsyncExitStack) -> None:
    """Knows the releases before the first request, and goes on reading, probing and bringing them about."""
    await asyncio.to_thread(_adopt, settings, parts.store)
    await _keep_objectives(parts, closing)
    releases_dir = Path(settings.state_dir or settings.data_dir) / "releases"
    fleet_settings = FleetSettings(settings.revive_wait_s)
    builder = Builder(releases_dir / "repository", fleet_settings)
    main = frozenset(model.name for model in settings.models)
    book = ReleaseBook(parts.store, fleet, parts.models, builder.prepare, main)
    await book.refresh()

    def pipeline_of(manifest: Manifest) -> FleetPipeline:
        return FleetPipeline(fleet.set_of(manifest), CONTEXT_TOKENS, fleet_settings)

    golden = GoldenRunner(pipeline_of)
    canaries = CanaryRunner(
        parts.store,
        golden,
        lambda manifest: fleet.set_of(manifest).can_take(),
        parts.metrics.releases.rolled_back,
    )
    controller = Controller(parts.store, fleet, Tools(releases_dir), canaries)
    limits = ProbeLimits(silence_s=settings.silence_limit_s)

    async def find_fault(name: str) -> str | None:
        return await asyncio.to_thread(book.find_tampering, name, releases_dir)

    prober = Prober(fleet, limits, lambda: controller.in_control, find_fault=find_fault)
    closing.push_async_callback(canaries.close)
    for work in (book.run(), controller.run(), prober.run()):
        go_on(closing, work)
    _keep_comparing(parts, closing)
    _keep_asking(parts, fleet, closing)
    _tune(settings, parts, fleet, book, controller, closing)


def _keep_comparing(parts: Parts, closing: AsyncExitStack) -> None:
    """Tells the others what was seen of the arms of rollouts, and of shadows."""
    if parts.arms is not None:
        go_on(closing, parts.arms.run())
    if parts.shadows is not None:
        if parts.shadows.recorder is not None:
            go_on(closing, parts.shadows.recorder.run())
        closing.push_async_callback(parts.shadows.close)


def _keep_asking(parts: Parts, fleet: Fleet, closing: AsyncExitStack) -> None:
    """Knows how the engines are, which know the objectives."""
    objectives = parts.objectives
    reports = EngineReports(
        fleet, lambda model: {} if objectives is None else objectives.inter_token_ms(model)
    )
    go_on(closing, reports.run())


def _tune(
    settings: Settings,
    parts: Parts,
    fleet: Fleet,
    book: ReleaseBook,
    controller: Controller,
    closing: AsyncExitStack,
) -> None:
    """Learns what batches take, which admission goes by too, sets queue delays by it, and tells it."""
    tuner = Tuner(
        fleet,
        book,
        parts.objectives,
        parts.metrics.objectives,
        parts.store,
        lambda: controller.in_control,
        TuningSettings(settings.tuning_window_s, settings.tuning),
    )
    parts.gates.batch_cost_of = tuner.batch_cost
    parts.metrics.watch_tuner(tuner)
    keeper = StepKeeper(fleet, parts.store, lambda: controller.in_control)
    for work in (tuner.run(), keeper.run()):
        go_on(closing, work)


async def _keep_objectives(parts: Parts, closing: AsyncExitStack) -> None:
    """Knows them before the first request, and tells what is measured of them."""
    if parts.objectives is not None:
        await parts.objectives.refresh()
        parts.metrics.watch_objectives(parts.objectives)
        recorder = FigureRecorder(parts.store, parts.metrics.objectives)
        for work in (parts.objectives.run(), recorder.run()):
            go_on(closing, work)


def keep_gates(parts: Parts, fleet: Fleet, closing: AsyncExitStack) -> None:
    """Lets requests in by what the releases can do, and ends all waiting when the router does."""
    gates = parts.gates
    if gates is not None:
        closing.callback(gates.close)
        gates.is_served = parts.models.serves
        parts.metrics.admission.watch(gates, fleet)
        for work in (gates.run(), parts.metrics.admission.run()):
            go_on(closing, work)


async def keep_sharing(settings: Settings, parts: Parts, closing: AsyncExitStack) -> None:
    """Knows what other routers use before the first request; without Redis there are none to know of."""
    if settings.redis_url:
        board = open_board(settings.redis_url, parts.tenancy.deployment)
        exchange = Exchange(board, parts.tenancy.ledger, parts.gates)
        parts.metrics.watch_sharing(exchange)
        await exchange.swap()
        go_on(closing, exchange.run())


def _adopt(settings: Settings, store: StoreAccess) -> None:
    """What the settings name is a release too: the store says which."""
    brought: list[Manifest] = [
        *(built_in_text(model) for model in settings.models),
        *(built_in_embeddings(model) for model in settings.embedders),
    ]
    retire(store.store, [adopt(store.store, manifest) for manifest in brought])


def go_on(closing: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Until everything is closed."""
    task = asyncio.get_running_loop().create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    closing.push_async_callback(end)
