"""What a release reports for metrics and scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.judge import NoisyTenant


@dataclass(frozen=True, slots=True)
class Load:
    """What scaling goes by; `offered` is compute units asked for in a second, refused requests included.

    It is that of all routers together, by this one's share of the replicas. `risk` and `objective_s` are
    those of the best tier in demand. `unit` is what one replica does in a second.
    """

    replicas: int
    drain_s: float
    risk: float
    objective_s: float
    offered: float
    unit: float = 1000.0


@dataclass(frozen=True, slots=True)
class Signals:
    """`drain_s`: until all that runs and waits would be done; None while the cost of work is not known.

    `risk` is the part of the requests of about 30 seconds whose first token was predicted to be too late.
    `kv_budget_tokens` is None where the cache is no limit. `load` is None while nobody has asked, and where
    the cost of work is not known.
    """

    drain_s: float | None
    risk: Mapping[Tier, float]
    waiting: Mapping[Tier, int]
    running: int
    kv_reserved_tokens: int = 0
    kv_budget_tokens: int | None = None
    load: Load | None = None
    noisy: NoisyTenant | None = None
