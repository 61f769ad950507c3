"""What every endpoint may need; built once, when the router starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.content.documents.documents import Documents
from router.content.documents.uploads import UploadedFiles
from router.content.files.model import FileLimits

if TYPE_CHECKING:
    from router.admission.gates import Gates
    from router.control.releases.arms import ArmRecorder
    from router.control.releases.shadow import Shadows
    from router.request.ticket import TicketDesk
    from router.routing.models import Registry
    from router.safety.guard import Safety
    from router.store.access import StoreAccess
    from router.telemetry.metrics import Metrics
    from router.telemetry.prompt_log import PromptLog
    from router.telemetry.tracing.tracer import Tracer
    from router.tenants.tenancy import Tenancy


@dataclass(frozen=True, slots=True)
class Service:
    registry: Registry
    desk: TicketDesk
    metrics: Metrics
    tenancy: Tenancy
    store: StoreAccess
    file_limits: FileLimits = field(default_factory=FileLimits)
    safety: Safety | None = None
    prompt_log: PromptLog | None = None
    arms: ArmRecorder | None = None
    shadows: Shadows | None = None
    gates: Gates | None = None
    tracer: Tracer | None = None
    documents: Documents = field(init=False)

    def __post_init__(self) -> None:
        # One for all: how many PDFs are read at once is bounded there.
        object.__setattr__(self, "documents", Documents(UploadedFiles(self.store)))
