"""A whole router on a free port, with a fake pipeline behind it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx

from router.admission.gates import Gates
from router.answer_cache.cached_requests import CachedRequests
from router.answer_cache.kept_answers import KeptAnswers
from router.app import App
from router.cascade.cascade import Cascade
from router.cascade.cascaded_requests import CascadedRequests
from router.chat.images import Hosts, Images
from router.content.documents.documents import Documents, UploadedFiles
from router.content.files.model import FileLimits
from router.control.releases.additions import Additions
from router.control.releases.arms import ArmRecorder
from router.control.releases.shadow import Shadows, ShadowSettings
from router.control.whatif.simulations import Simulations
from router.core.embedding import ServedEmbedder
from router.core.tenant import LOCAL_CALLER, NO_LIMITS, Role, Scope, UsageSummary
from router.core.tenant import Limits as LimitsOf
from router.http.connection import Limits
from router.http.listener import Listener
from router.parts import Parts
from router.request.answer import Answers, Observer
from router.request.aside import Aside
from router.request.identity import Doorkeeper
from router.request.permit import Permits
from router.request.prompt_lengths import PromptLengths
from router.request.token_counting import Tokenizers
from router.request.web_pages import WebPages
from router.resume.event_log import EventLog
from router.resume.memory_log import MemoryEventLog
from router.routing.chat_template import AddedToken, ChatTemplate, TokenizerFile
from router.routing.models import Registry, ServedModel
from router.routing.replicas import Fleet
from router.safety.guard import Safety
from router.store.database import StoreAccess, sqlite_url
from router.telemetry.accounts import RequestAccounts
from router.telemetry.metrics import Metrics
from router.telemetry.overview.overview import Overview
from router.telemetry.overview.snapshots import Snapshots
from router.telemetry.prompt_log import PromptLog
from router.telemetry.tracing.tracer import Tracer
from router.tenants.administration import DEFAULT_SCOPES, Administration
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import Tenancy, TenancySettings
from tests.fakes.embedder import LIMITS as EMBEDDER_LIMITS
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gates import OpenGates
from tests.fakes.pipeline import FakePipeline
from tests.in_memory import folder_in_memory
from tests.pace import patience
from tests.router.stores import write_store
from tests.router.tenants.values import PEPPER
from tests.waiting import until

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKENIZER = TokenizerFile((AddedToken("<user>", special=True), AddedToken("</user>", special=True)))
COMPILED = ChatTemplate(TEMPLATE, None, TOKENIZER)  # for every router that a test starts
MODEL = "tiny"
BARE_MODEL = "no-template"
EMBEDDER = "tiny-vectors"
QUESTION = [{"role": "user", "content": "hi"}]


@dataclass
class RunningRouter:
    pipeline: FakePipeline
    permits: Permits
    metrics: Metrics
    listener: Listener
    port: int
    http: httpx.AsyncClient
    parts: Parts
    embedder: FakeEmbedder
    app: App
    gates: Gates
    arms: ArmRecorder
    shadows: Shadows

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def chat(self, **fields: object) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": QUESTION, **fields}
        )

    async def complete(self, **fields: object) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi", **fields})

    async def until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Waits for something that happens shortly after an answer."""
        await until(condition, limit_s=timeout_s)

    async def until_async(
        self, value: Callable[[], Awaitable[object]], expected: object, timeout_s: float = 30.0
    ) -> None:
        async def is_expected() -> bool:
            return await value() == expected

        await until(is_expected, f"it did not become {expected} in time", timeout_s)

    async def new_tenant(self, name: str = "acme", limits: LimitsOf = NO_LIMITS) -> str:
        """Its id; from the first key on, everybody needs one."""
        tenancy = self.parts.tenancy
        made = await tenancy.administer(lambda admin: admin.create_organisation(SYSTEM, name))
        await tenancy.administer(lambda admin: admin.set_limits(SYSTEM, made.id, limits))
        return made.id

    async def new_key(
        self,
        tenant: str,
        scopes: frozenset[Scope] = DEFAULT_SCOPES,
        role: Role = Role.MEMBER,
        limits: LimitsOf = NO_LIMITS,
        models: frozenset[str] | None = None,
        platform_admin: bool = False,
    ) -> str:
        """As its holder sees it, of a user of its own."""
        name = f"user-{secrets.token_hex(4)}"

        def make(admin: Administration) -> str:
            user = admin.create_user(SYSTEM, tenant, name, role, platform_admin)
            key, text = admin.create_key(SYSTEM, tenant, user.id, name, scopes, models)
            admin.set_limits(SYSTEM, tenant, limits, key.id)
            return text

        return await self.parts.tenancy.administer(make)

    async def usage(self, tenant: str) -> list[UsageSummary]:
        """By model, once everything recorded so far is in the store."""
        tenancy = self.parts.tenancy
        await tenancy.administer(lambda admin: tenancy.deliver())
        return await tenancy.administer(
            lambda admin: admin.usage(SYSTEM, tenant, ("model",), "2000-01-01", "2999-01-01")
        )

    def metric(self, name: str, **labels: str) -> float:
        """Of the only release there is, unless one is named."""
        if "tenant" in labels:
            labels = {"release": "1" if labels["model"] else "", **labels}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running_router(
    limits: Limits | None = None,
    sweep_s: float = 0.05,
    file_limits: FileLimits | None = None,
    data_dir: Path | None = None,
    safety: Safety | None = None,
    prompt_log: PromptLog | None = None,
    is_private: bool = True,
    shadowing: ShadowSettings | None = None,
    gates: Gates | None = None,
    tracer: Tracer | None = None,
    pages: WebPages | None = None,
    metrics_open: bool = False,
    checkpoint_dir: Path | None = None,
    events: EventLog | None = None,
    keyed_grace_s: float = 60.0,
    cached_percent: int = 0,
    cached_shared: bool = False,
    additions: Additions | None = None,
    cascade: Cascade | None = None,
    others: Sequence[ServedModel] = (),
    image_hosts: Hosts | None = None,
) -> AsyncIterator[RunningRouter]:
    pipeline = FakePipeline()
    embedder = FakeEmbedder()
    metrics = Metrics()
    registry = Registry(
        [
            ServedModel(MODEL, pipeline, COMPILED, checkpoint_dir=checkpoint_dir),
            ServedModel(BARE_MODEL, pipeline, None),
            *others,
        ],
        [ServedEmbedder(EMBEDDER, embedder, EMBEDDER_LIMITS)],
        cascades={} if cascade is None else {cascade.name: (cascade.small, cascade.large)},
    )
    with folder_in_memory() if data_dir is None else nullcontext(data_dir) as directory:
        async with running_tenancy(directory) as tenancy:
            store = StoreAccess(tenancy.store)
            open_gates = OpenGates().as_gates if gates is None else gates
            accounts = RequestAccounts(metrics, tracer)
            permits = Permits(tenancy, open_gates, accounts)
            arms = ArmRecorder(store)
            shadows = Shadows(registry, permits, metrics.shadows, shadowing, gates=gates, mirrored=arms)
            observers: list[Observer] = [arms]
            if prompt_log is not None:
                observers.append(prompt_log)
            tokenizers = Tokenizers.of(registry)
            aside = Aside()
            parts = Parts(
                models=registry,
                permits=permits,
                answers=Answers(
                    permits, observers, [] if safety is None else [safety], shadows, PromptLengths(tokenizers)
                ),
                accounts=accounts,
                metrics=metrics,
                tenancy=tenancy,
                store=store,
                documents=Documents(UploadedFiles(store)),
                images=Images(aside, UploadedFiles(store), image_hosts),
                tokenizers=tokenizers,
                file_limits=file_limits or FileLimits(),
                events=events or MemoryEventLog(),
                cached=CachedRequests(
                    KeptAnswers(1 << 20), permits, registry.published, cached_percent, aside, cached_shared
                ),
                cascaded=CascadedRequests([] if cascade is None else [cascade], aside),
                keyed_grace_s=keyed_grace_s,
                recent=accounts.recent,
                overview=Overview(Snapshots(metrics, registry.published, gates or {}, Fleet([]))),
                simulations=Simulations(Fleet([]), registry.published.objective_of),
                additions=additions or Additions(),
                prompt_log=prompt_log,
                metrics_open=metrics_open,
                safety=safety,
            )
            app = App(parts, Doorkeeper(tenancy, is_private, pages, LOCAL_CALLER))
            listener = Listener(app, app.refuse, limits, sweep_s, app.body_terms)
            port = await listener.start("127.0.0.1", 0)
            try:
                async with httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=patience(10)
                ) as http:
                    yield RunningRouter(
                        pipeline,
                        permits,
                        metrics,
                        listener,
                        port,
                        http,
                        parts,
                        embedder,
                        app,
                        open_gates,
                        arms,
                        shadows,
                    )
            finally:
                await listener.close()
                await shadows.close()
                await parts.documents.close()
                await tokenizers.close()
                store.close()


@asynccontextmanager
async def running_tenancy(directory: Path) -> AsyncIterator[Tenancy]:
    path = directory / "store.db"
    if not path.exists():
        write_store(path)
    tenancy = Tenancy(TenancySettings(sqlite_url(path), PEPPER, directory / "spool"))
    await asyncio.to_thread(tenancy.start)
    try:
        yield tenancy
    finally:
        await asyncio.to_thread(tenancy.stop)
