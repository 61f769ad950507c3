"""How the requests to one model are divided over its releases, as it is kept in the store."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

from router.releases.choosing import Shadow, Sticky
from router.releases.splits import Arm, Split


@dataclass(frozen=True, slots=True)
class ModelSplit:
    """`standby` was stable before and stays loaded. While a rollout decides the weights it is named, with
    the step it is in, and its canary is the first arm."""

    model: str
    arms: tuple[tuple[int, float], ...]
    salt: str
    sticky: Sticky = Sticky.REQUEST
    shadow: Shadow | None = None
    standby: int | None = None
    rollout_id: int | None = None
    step: int = 0

    def __post_init__(self) -> None:
        self.split()  # refuses weights that are none

    def split(self) -> Split:
        return Split(self.salt, tuple(Arm(str(version), weight) for version, weight in self.arms))

    @property
    def stable(self) -> int:
        """The one that others are measured against: behind the canary, even where that has all the traffic;
        without one, the last arm that has any."""
        if self.rollout_id is not None:
            return self.arms[-1][0]
        return [version for version, weight in self.arms if weight > 0][-1]

    @property
    def versions(self) -> frozenset[int]:
        """All that must be loaded for it."""
        named = {version for version, _ in self.arms}
        named |= {self.shadow.version} if self.shadow else set()
        return frozenset(named | ({self.standby} if self.standby is not None else set()))

    def weight_of(self, version: int) -> float:
        return dict(self.arms).get(version, 0.0)

    def role_of(self, version: int) -> str:
        """For people; empty for a release that has no part in it."""
        if version == self.stable:
            return "stable"
        if version in dict(self.arms):
            return "arm" if self.rollout_id is None else "canary"
        if self.shadow is not None and self.shadow.version == version:
            return "shadow"
        return "standby" if version == self.standby else ""

    def all_to(self, version: int) -> ModelSplit:
        """One release gets everything; the one that was stable stands by."""
        standby = self.stable if self.stable != version else self.standby
        if standby == version:
            standby = None
        shadow = None if self.shadow and self.shadow.version == version else self.shadow
        return replace(self, arms=((version, 1.0),), standby=standby, shadow=shadow, rollout_id=None, step=0)

    def without(self, version: int) -> ModelSplit:
        """One that gets no traffic is named no more."""
        arms = tuple(arm for arm in self.arms if arm[0] != version)
        shadow = None if self.shadow and self.shadow.version == version else self.shadow
        standby = None if self.standby == version else self.standby
        return replace(self, arms=arms, shadow=shadow, standby=standby)

    def with_canary(self, canary: int, weight: float, rollout_id: int, step: int) -> ModelSplit:
        """The canary in front: what grows takes keys from its neighbour, and gives none back."""
        arms = ((canary, weight), (self.stable, 1 - weight))
        shadow = None if self.shadow and self.shadow.version == canary else self.shadow
        standby = None if self.standby == canary else self.standby
        return replace(self, arms=arms, shadow=shadow, standby=standby, rollout_id=rollout_id, step=step)

    def to_json(self) -> str:
        return json.dumps(
            {
                "arms": [list(arm) for arm in self.arms],
                "salt": self.salt,
                "sticky": self.sticky.value,
                "shadow": None if self.shadow is None else [self.shadow.version, self.shadow.share],
                "standby": self.standby,
                "rollout_id": self.rollout_id,
                "step": self.step,
            }
        )


def split_from_json(model: str, text: str) -> ModelSplit:
    value: dict[str, Any] = json.loads(text)
    return ModelSplit(
        model,
        tuple((int(version), float(weight)) for version, weight in value["arms"]),
        value["salt"],
        Sticky(value["sticky"]),
        None if value["shadow"] is None else Shadow(*value["shadow"]),
        value["standby"],
        value["rollout_id"],
        value["step"],
    )


def first_split(model: str, version: int) -> ModelSplit:
    return ModelSplit(model, ((version, 1.0),), secrets.token_hex(8))
