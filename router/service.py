"""What every endpoint may need; built once, when the router starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.documents.reading import Documents
from router.documents.uploads import UploadedFiles
from router.files.model import FileLimits

if TYPE_CHECKING:
    from router.admission.gates import Gates
    from router.metrics import Metrics
    from router.objectives.book import ObjectiveBook
    from router.privacy.prompt_log import PromptLog
    from router.registry import Registry
    from router.rollouts.arms import ArmRecorder
    from router.rollouts.shadowing import Shadows
    from router.safety.guard import Safety
    from router.store.access import StoreAccess
    from router.tenancy.service import Tenancy
    from router.ticket import TicketDesk
    from router.tracing.tracer import Tracer


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
    objectives: ObjectiveBook | None = None
    tracer: Tracer | None = None
    documents: Documents = field(init=False)

    def __post_init__(self) -> None:
        # One for all: how many PDFs are read at once is bounded there.
        object.__setattr__(self, "documents", Documents(UploadedFiles(self.store)))
