"""Puts admission together as the settings want it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from router.admission.dispatcher import Dispatcher
from router.admission.first_come import FirstCome
from router.admission.gates import Gates
from router.admission.lengths import OutputLengths

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.wire.tiers import Tier
    from router.admission.fairness import Shares
    from router.admission.gate import Watcher
    from router.admission.policy import Policy
    from router.fleet.replicas import Fleet
    from router.objectives.objective import Objective


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """`places` of each release: 0 is as many as its engines have, -1 no limit."""

    policy: Literal["objectives", "first_come"] = "objectives"
    places: int = 0


@dataclass(frozen=True, slots=True)
class TenantShares:
    """What tenants are entitled to, by their limits."""

    share_of: Callable[[str], tuple[float, float]]

    def weight(self, tenant: str) -> float:
        return self.share_of(tenant)[0]

    def slot_share(self, tenant: str) -> float:
        return self.share_of(tenant)[1]


def build_gates(
    settings: AdmissionSettings,
    fleet: Fleet,
    shares: Shares,
    objective_of: Callable[[str, Tier], Objective],
    watcher: Watcher | None = None,
) -> Gates:
    def new_policy() -> Policy:
        if settings.policy == "first_come":
            return FirstCome(settings.places)
        return Dispatcher(shares, OutputLengths())

    return Gates(fleet, new_policy, objective_of, settings.places, watcher=watcher)
