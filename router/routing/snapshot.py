"""What the control plane has decided and requests go by: one immutable value, replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from router.core.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    from python_backend.wire.tiers import Tier
    from router.routing.split import ModelSplit, Split


class Served(Protocol):
    """One release of a model, as requests are served by it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def created_s(self) -> int: ...
    @property
    def triton_name(self) -> str:
        """What Triton calls the model that requests go to."""

    async def ready(self) -> bool:
        """Whether a request sent now would be served."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """One model: its loaded releases, all of one kind, and how requests are split over them.

    `is_main`: the router is not ready without it; the others may fail on their own.
    """

    name: str
    releases: Mapping[int, Served]
    split: ModelSplit
    is_main: bool = True
    divided: Split = field(init=False, repr=False)  # made once: every request asks it

    def __post_init__(self) -> None:
        object.__setattr__(self, "divided", self.split.split())

    @property
    def stable(self) -> Served | None:
        """What stands for the model where no request is to be answered; None where nothing is loaded.

        Where the stable release is not loaded it is the one before, or else any.
        """
        for version in (self.split.stable, self.split.standby):
            if version is not None and version in self.releases:
                return self.releases[version]
        return next(iter(self.releases.values()), None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The models by name, and the objectives that are set by model and tier."""

    lineups: Mapping[str, Lineup] = field(default_factory=dict)
    objectives: Mapping[tuple[str, Tier], Objective] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def _no_objective(model: str, tier: Tier) -> Objective:
    return Objective(model, tier)


class Published:
    """The current snapshot: control publishes the next one, and a request reads one for all it decides."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.current = snapshot or Snapshot()

    def publish(self, snapshot: Snapshot) -> None:
        self.current = snapshot

    def objective_of(self, model: str, tier: Tier) -> Objective:
        """An empty one where none is set."""
        found = self.current.objectives.get((model, tier))
        return _no_objective(model, tier) if found is None else found
