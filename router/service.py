"""What every endpoint may need; built once, when the router starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.files.model import FileLimits

if TYPE_CHECKING:
    from router.metrics import Metrics
    from router.registry import Registry
    from router.store.access import StoreAccess
    from router.tenancy.service import Tenancy
    from router.ticket import TicketDesk


@dataclass(frozen=True, slots=True)
class Service:
    registry: Registry
    desk: TicketDesk
    metrics: Metrics
    tenancy: Tenancy
    store: StoreAccess
    file_limits: FileLimits = field(default_factory=FileLimits)
