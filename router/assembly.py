"""Puts a router together: what is built, in which order, and which loops run behind the requests."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_backend.host.cores import available_cores
from python_backend.sharing.processor_share import ProcessorShare
from router.admission.gates import AdmissionSettings, build_gates
from router.answer_cache.cached_requests import CachedRequests
from router.answer_cache.kept_answers import KeptAnswers
from router.cascade.cascade import cascade_of
from router.cascade.cascaded_requests import CascadedRequests
from router.chat.images import ImageLimits, Images
from router.content.documents.documents import Documents, UploadedFiles
from router.content.files.model import FileLimits
from router.control.health.engine_reports import EngineReports
from router.control.health.prober import Prober
from router.control.health.vital_signs import ProbeLimits
from router.control.objectives.monitor import ObjectiveMonitor
from router.control.objectives.publisher import ObjectivePublisher
from router.control.objectives.recorder import ObjectiveRecorder
from router.control.peers.peer_sync import PeerSync, new_loads, open_board
from router.control.peers.shared_events import SharedEventLog
from router.control.releases.additions import Additions
from router.control.releases.adoption import adopt, retire
from router.control.releases.arms import ArmRecorder
from router.control.releases.canary_runner import CanaryRunner
from router.control.releases.controller import Controller
from router.control.releases.deaths import DeathRecorder
from router.control.releases.golden import GoldenRunner
from router.control.releases.publisher import ReleasePublisher
from router.control.releases.rehearsal import RehearsalStage
from router.control.releases.replay import Replays
from router.control.releases.shadow import Shadows
from router.control.releases.shadow_figures import ShadowRecorder
from router.control.releases.steps import Tools
from router.control.scaling.replicas import ScalingSettings
from router.control.scaling.wanted import WantedReplicas
from router.control.tuning.step_keeper import StepKeeper
from router.control.tuning.tuner import Tuner, TuningSettings
from router.control.whatif.simulations import Simulations
from router.core.side_work import SideWork
from router.grpc.target import ClientTls
from router.parts import Parts
from router.request.answer import Answers
from router.request.aside import Aside
from router.request.permit import Permits
from router.request.prompt_lengths import PromptLengths
from router.request.token_counting import Tokenizers
from router.resume.memory_log import LogLimits, MemoryEventLog
from router.routing.builder import Builder, built_in_embeddings, built_in_text
from router.routing.checkpoint import CONTEXT_TOKENS
from router.routing.discovery import Discovery, Sought, place_of
from router.routing.generation import FleetPipeline
from router.routing.models import Published, Registry
from router.routing.replicas import Fleet, FleetSettings
from router.safety.guard import load_safety
from router.store.database import StoreAccess
from router.telemetry.accounts import RequestAccounts
from router.telemetry.admission import AdmissionMetrics
from router.telemetry.collectors import (
    AnswerCacheMetrics,
    BatchMetrics,
    CascadeMetrics,
    FleetMetrics,
    ObjectiveMetrics,
    PeerMetrics,
    ReleaseMetrics,
    TenancyMetrics,
)
from router.telemetry.metrics import Metrics
from router.telemetry.overview.overview import Overview
from router.telemetry.overview.snapshots import Snapshots
from router.telemetry.prompt_log import PromptLog
from router.telemetry.recorded_prompts import RecordedPrompts
from router.telemetry.tracing.setup import open_tracer
from router.triton.server import TritonServer

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextlib import AsyncExitStack

    from router.admission.gates import Gates
    from router.core.manifest import Manifest
    from router.request.answer import Observer
    from router.resume.event_log import EventLog
    from router.routing.replicas import Replica
    from router.settings import PlacedOptions, Settings, TritonSettings
    from router.tenants.tenancy import Tenancy

_CANCELLED_AGAIN_S = 5.0


class Assembly:
    """All of a router but its ports: `start` builds it in order, and `closing` takes it down in reverse.

    Control publishes to `published`, requests read it; `metrics` and `monitor` are told what they took.
    """

    def __init__(self, settings: Settings, tenancy: Tenancy, closing: AsyncExitStack) -> None:
        self._settings = settings
        self._tenancy = tenancy
        self._closing = closing
        self._releases_dir = Path(settings.state_dir or settings.data_dir) / "releases"
        self._shares_files = settings.release_files == "shared"
        self._fleet_settings = FleetSettings(
            settings.revive_wait_s, settings.hedge_percent, settings.apart_tokens
        )
        # What this process's own threads do for one tenant; what others do has a share of its own.
        self._threads_share = ProcessorShare.on(available_cores())
        self._store = StoreAccess(tenancy.store, share=self._threads_share)
        closing.callback(self._store.close)
        self._prompt_log = _open_prompt_log(settings)
        if self._prompt_log is not None:
            closing.push_async_callback(asyncio.to_thread, self._prompt_log.stop)
        self._fleet = Fleet([], restart_s=settings.revive_wait_s)
        self._discovery = open_discovery(settings, self._fleet)
        closing.push_async_callback(self._discovery.close)
        self._published = Published()
        self._peer_loads = new_loads()
        self._events_kept = LogLimits(kept_s=settings.answers_kept_s)
        self._events: EventLog = MemoryEventLog(self._events_kept)
        behind = {each.name: (each.small, each.large) for each in settings.cascades}
        self._registry = Registry(published=self._published, cascades=behind)
        self._monitor = ObjectiveMonitor()
        self._metrics = Metrics(self._monitor)
        self._metrics.expose(TenancyMetrics(tenancy), FleetMetrics(self._fleet))
        self._tracer = open_tracer(settings, self._metrics, version("inflight"), closing)

    async def start(self) -> Parts:
        """Returns when the first request may come."""
        await self._discovery.look()
        self._run(self._discovery.run())
        await asyncio.to_thread(self._adopt_built_in)
        await self._publish_objectives()
        releases = await self._publish_releases()
        controller = self._control_releases()
        self._probe(releases, controller)
        self._run(EngineReports(self._fleet, self._published.objective_of).run())
        tuner = self._tune(releases, controller)
        gates = self._admit(tuner)
        await self._share_with_peers(gates)
        return self._serve(gates)

    # Control

    def _adopt_built_in(self) -> None:
        """The models that the settings name are releases too: the store says which."""
        store, settings = self._store.store, self._settings
        named = [
            *(built_in_text(model) for model in settings.models),
            *(built_in_embeddings(model) for model in settings.embedders),
        ]
        retire(store, [adopt(store, manifest) for manifest in named])

    async def _publish_objectives(self) -> None:
        publisher = ObjectivePublisher(self._store, self._published, self._monitor.hold_to)
        await publisher.refresh()
        self._metrics.expose(ObjectiveMetrics(self._monitor, self._published))
        self._run(publisher.run(), ObjectiveRecorder(self._store, self._monitor).run())

    async def _publish_releases(self) -> ReleasePublisher:
        builder = Builder(
            self._releases_dir / "repository", self._fleet_settings, self._settings.shared_prefixes
        )
        main = frozenset(model.name for model in self._settings.models)
        publisher = ReleasePublisher(self._store, self._fleet, self._registry, builder.prepare, main)
        await publisher.refresh()
        self._run(publisher.run())
        return publisher

    def _control_releases(self) -> Controller:
        fleet, fleet_settings = self._fleet, self._fleet_settings

        def pipeline_of(manifest: Manifest) -> FleetPipeline:
            return FleetPipeline(fleet.set_of(manifest), CONTEXT_TOKENS, fleet_settings)

        metrics = ReleaseMetrics(self._published)
        self._metrics.expose(metrics)
        canaries = CanaryRunner(
            self._store,
            GoldenRunner(pipeline_of),
            lambda manifest: fleet.set_of(manifest).can_take(),
            metrics.rolled_back,
            RehearsalStage(pipeline_of),
            metrics.proved,
        )
        self._closing.push_async_callback(canaries.close)
        controller = Controller(
            self._store, fleet, Tools(self._releases_dir, is_shared=self._shares_files), canaries
        )
        self._run(controller.run())
        return controller

    def _probe(self, releases: ReleasePublisher, controller: Controller) -> None:
        async def find_fault(name: str) -> str | None:
            if not self._shares_files:
                return None
            return await asyncio.to_thread(releases.find_tampering, name, self._releases_dir)

        limits = ProbeLimits(silence_s=self._settings.silence_limit_s)
        deaths = DeathRecorder(self._store, lambda: controller.in_control)

        def on_death(replica: Replica, why: str) -> None:
            deaths.died(replica.manifest, replica.name, why)

        prober = Prober(
            self._fleet, limits, lambda: controller.in_control, find_fault=find_fault, on_death=on_death
        )
        self._run(deaths.run(), prober.run())

    def _tune(self, releases: ReleasePublisher, controller: Controller) -> Tuner:
        tuner = Tuner(
            self._fleet,
            releases,
            self._published.objective_of,
            self._monitor,
            self._store,
            lambda: controller.in_control,
            TuningSettings(self._settings.tuning_window_s, self._settings.tuning),
        )
        self._metrics.expose(BatchMetrics(tuner))
        self._run(tuner.run(), StepKeeper(self._fleet, self._store, lambda: controller.in_control).run())
        return tuner

    # Admission

    def _admit(self, tuner: Tuner) -> Gates:
        settings = self._settings
        gates = build_gates(
            AdmissionSettings(settings.admission, settings.admission_places),
            self._fleet,
            self._tenancy.catalogue,
            self._published.objective_of,
            self._metrics.admission,
            batch_cost_of=tuner.batch_cost,
            is_served=self._registry.serves,
            share_of=self._peer_loads.share_of,
        )
        wanted = WantedReplicas(gates, ScalingSettings(start_s=settings.replica_start_s))
        metrics = AdmissionMetrics(gates, self._fleet, wanted)
        self._metrics.expose(metrics)
        self._closing.callback(gates.close)
        self._overview = Overview(
            Snapshots(self._metrics, self._published, gates, self._fleet, metrics.busy_of, wanted.of_release)
        )
        self._run(gates.run(), metrics.run(), wanted.run(), self._overview.run())
        return gates

    async def _share_with_peers(self, gates: Gates) -> None:
        """Knows what other routers use before the first request; without Redis there are none."""
        sync = None
        if self._settings.redis_url:
            board = open_board(self._settings.redis_url, self._tenancy.deployment)
            sync = PeerSync(board, self._tenancy.ledger, gates, self._peer_loads)
            shared = self._events = SharedEventLog(board.link, sync.name, self._events_kept)
            await sync.swap()
            self._run(sync.run())
            self._closing.push_async_callback(shared.close)
        self._metrics.expose(PeerMetrics(sync))

    # The path

    def _serve(self, gates: Gates) -> Parts:
        settings, store, metrics = self._settings, self._store, self._metrics
        accounts = RequestAccounts(metrics, self._tracer)
        share = ProcessorShare.on(available_cores())
        side_work = SideWork(stands_still=not share.is_whole)
        permits = Permits(self._tenancy, gates, accounts, side_work=side_work)
        arms = ArmRecorder(store, objective_of=self._published.objective_of)
        shadow_recorder = ShadowRecorder(store)
        shadows = Shadows(
            self._registry, permits, metrics.shadows, recorder=shadow_recorder, gates=gates, mirrored=arms
        )
        self._run(arms.run(), shadow_recorder.run())
        self._closing.push_async_callback(shadows.close)
        if self._prompt_log is not None:
            self._run(self._replays(permits, gates, arms).run())
        observers: list[Observer] = [arms]
        if self._prompt_log is not None:
            observers.append(self._prompt_log)
        names = [*(model.name for model in settings.models), *(each.name for each in settings.embedders)]
        safety = load_safety(settings.safety_rules, settings.safety_check, settings.safety_models, names)
        tokenizers = Tokenizers.of(self._registry, share, side_work)
        # One for all: how many files are read at once is bounded there.
        documents = Documents(UploadedFiles(store), share=share, side_work=side_work)
        self._closing.push_async_callback(documents.close)
        self._closing.push_async_callback(tokenizers.close)
        aside = Aside(self._threads_share)
        answers_kept = KeptAnswers(settings.answer_cache_bytes)
        cached = CachedRequests(
            answers_kept,
            permits,
            self._published,
            settings.cached_answer_percent,
            aside,
            settings.cached_answers_shared,
        )
        cascaded = CascadedRequests(map(cascade_of, settings.cascades), aside)
        metrics.expose(AnswerCacheMetrics(cached), CascadeMetrics(cascaded))
        additions = Additions(settings.release_command, settings.release_sources)
        self._closing.push_async_callback(additions.close)
        return Parts(
            models=self._registry,
            permits=permits,
            answers=Answers(
                permits,
                observers,
                [] if safety is None else [safety],
                shadows,
                PromptLengths(tokenizers),
                aside,
            ),
            accounts=accounts,
            metrics=metrics,
            tenancy=self._tenancy,
            store=store,
            documents=documents,
            images=self._images(aside),
            tokenizers=tokenizers,
            file_limits=FileLimits(settings.max_file_bytes, settings.max_files_bytes_per_tenant),
            events=self._events,
            cached=cached,
            cascaded=cascaded,
            keyed_grace_s=settings.unread_grace_s,
            recent=accounts.recent,
            overview=self._overview,
            simulations=Simulations(self._fleet, self._published.objective_of),
            additions=additions,
            prompt_log=self._prompt_log,
            metrics_open=settings.metrics_open,
            safety=safety,
        )

    def _images(self, aside: Aside) -> Images:
        limits = ImageLimits(self._settings.max_image_bytes, self._settings.max_image_pixels)
        hosts = None
        if self._settings.image_hosts:
            from router.chat.image_hosts import ImageHosts

            hosts = ImageHosts(self._settings.image_hosts, limits.max_bytes)
            self._closing.push_async_callback(hosts.close)
        return Images(aside, UploadedFiles(self._store), hosts, limits)

    def _replays(self, permits: Permits, gates: Gates, arms: ArmRecorder) -> Replays:
        def is_idle(model: str, *versions: int) -> bool:
            return not permits.open_count and gates.has_room(model, *map(str, versions))

        recorded = RecordedPrompts(Path(self._settings.prompt_log_dir))
        return Replays(self._registry, recorded, is_idle, arms, self._metrics.shadows.replayed)

    def _run(self, *loops: Coroutine[Any, Any, None]) -> None:
        for loop in loops:
            run_until_closed(self._closing, loop)


def run_until_closed(closing: AsyncExitStack, loop: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(loop)

    async def end() -> None:
        while not task.done():  # `asyncio.wait_for` may lose a cancellation, and a loop goes on then
            task.cancel()
            await asyncio.wait([task], timeout=_CANCELLED_AGAIN_S)

    closing.push_async_callback(end)


def open_discovery(settings: Settings, fleet: Fleet) -> Discovery:
    """Servers of one address each belong to the fleet from the start; the others are looked for."""
    sought = []
    for number, each in enumerate(settings.triton_servers):
        tls = _client_tls(each)
        place = place_of(each.url)
        name = f"triton-{number}" if place is None else None
        # By its address, which is the same in every router: all prefer the same server for the same prompt.
        new = partial(_new_server, name, each.secret, settings.stop_timeout_s, tls)
        if place is None:
            fleet.join(new(each.url))
        else:
            sought.append(Sought(place, new))
    return Discovery(fleet, sought)


def _client_tls(server: TritonSettings) -> ClientTls | None:
    if not server.tls_ca:
        return None
    return ClientTls(server.tls_ca, server.tls_cert, server.tls_key, server.tls_name, server.plain_too)


def _new_server(
    name: str | None, secret: str, stop_timeout_s: float, tls: ClientTls | None, url: str
) -> TritonServer:
    return TritonServer(name or url, url, secret, stop_timeout_s, tls)


def _open_prompt_log(settings: PlacedOptions) -> PromptLog | None:
    if not settings.prompt_log_dir:
        return None
    opened = PromptLog(Path(settings.prompt_log_dir), settings.prompt_log_days)
    opened.start()
    return opened
