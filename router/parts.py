"""The parts of a running router, put together; each door is handed what it needs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.answer_cache.cached_requests import CachedRequests
    from router.cascade.cascaded_requests import CascadedRequests
    from router.chat.images import Images
    from router.content.documents.documents import Documents
    from router.content.files.model import FileLimits
    from router.control.releases.additions import Additions
    from router.control.whatif.simulations import Simulations
    from router.request.accounts import Accounts
    from router.request.answer import Answers
    from router.request.permit import Permits
    from router.request.token_counting import Tokenizers
    from router.resume.event_log import EventLog
    from router.routing.models import Registry
    from router.safety.guard import Safety
    from router.store.database import StoreAccess
    from router.telemetry.metrics import Metrics
    from router.telemetry.overview.overview import Overview
    from router.telemetry.prompt_log import PromptLog
    from router.telemetry.recent_requests import RecentRequests
    from router.tenants.tenancy import Tenancy


@dataclass(frozen=True, slots=True)
class Parts:
    models: Registry
    permits: Permits
    answers: Answers
    accounts: Accounts
    metrics: Metrics
    tenancy: Tenancy
    store: StoreAccess
    documents: Documents
    images: Images
    tokenizers: Tokenizers
    file_limits: FileLimits
    events: EventLog
    cached: CachedRequests
    cascaded: CascadedRequests
    recent: RecentRequests
    overview: Overview
    simulations: Simulations
    additions: Additions
    prompt_log: PromptLog | None = None
    keyed_grace_s: float = 60.0  # for so long an answer with a key is made for nobody
    metrics_open: bool = False  # /metrics asks for no key
    safety: Safety | None = None  # what /v1/moderations judges by
