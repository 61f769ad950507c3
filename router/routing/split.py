"""Which release answers a request: by weight, and the same one for the same key as long as weights allow."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Any

_BITS = 53  # as many as a float holds exactly


@dataclass(frozen=True, slots=True)
class Arm:
    """One release and its share of the traffic, in 0..1."""

    release: str
    weight: float


@dataclass(frozen=True, slots=True)
class Split:
    """The arms in their order, whose weights add up to 1.

    A key has a fixed place in 0..1, and the arms lie side by side there, so that a weight that grows takes
    over keys from its neighbours and moves none among the others: put the canary first, and who is in it at
    1 % is in it at 5 % too. `salt` gives every split of a model places of its own.
    """

    salt: str
    arms: tuple[Arm, ...]

    def __post_init__(self) -> None:
        names = [arm.release for arm in self.arms]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a split needs one or more releases, each once; got {names}")
        if any(not 0 <= arm.weight <= 1 for arm in self.arms):
            raise ValueError("weights are shares of the traffic, from 0 to 1")
        if abs(sum(arm.weight for arm in self.arms) - 1) > 1e-9:
            raise ValueError(f"the weights add up to {sum(arm.weight for arm in self.arms):g}, not to 1")

    def choose(self, key: str) -> str:
        """The release of a key: a tenant, a user, a conversation, or the request's id where none sticks."""
        place = place_of(self.salt, key)
        edge = 0.0
        for arm in self.arms:
            edge += arm.weight
            if place < edge:
                return arm.release
        # Rounding may leave the last edge a hair below 1.
        return next(arm.release for arm in reversed(self.arms) if arm.weight > 0)


def place_of(salt: str, key: str) -> float:
    """In 0..1, the same on every machine and after every restart."""
    digest = blake2b(f"{salt}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place: float = (int.from_bytes(digest, "big") >> (64 - _BITS)) / 2**_BITS
    return place


class Sticky(str, Enum):
    """Whose requests stay with one release."""

    REQUEST = "request"  # nobody's
    TENANT = "tenant"
    USER = "user"
    CONVERSATION = "conversation"


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks; what is not known is empty."""

    request_id: str
    tenant: str = ""
    user: str = ""
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A release that gets a share of the requests too, and whose answers nobody sees."""

    version: int
    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of a shadow is {self.share:g}; allowed: above 0, up to 1")


def sticky_key(sticky: Sticky, asking: Asking) -> str:
    """What of the asker decides; the next wider circle where the narrow one is not known."""
    if sticky is Sticky.CONVERSATION and asking.conversation:
        return f"{asking.tenant}\0{asking.conversation}"
    if sticky in (Sticky.CONVERSATION, Sticky.USER) and asking.user:
        return f"{asking.tenant}\0{asking.user}"
    if sticky is not Sticky.REQUEST and asking.tenant:
        return asking.tenant
    return asking.request_id


def choose_version(split: Split, sticky: Sticky, asking: Asking, ready: Collection[int]) -> int | None:
    """The split's choice; where that release cannot answer, the ready one with the most traffic."""
    chosen = int(split.choose(sticky_key(sticky, asking)))
    if chosen in ready:
        return chosen
    there = [arm for arm in split.arms if int(arm.release) in ready]
    if not there:
        return None
    return int(max(there, key=lambda arm: arm.weight).release)


def is_shadowed(shadow: Shadow | None, salt: str, request_id: str, chosen: int) -> bool:
    """Not what the shadow itself answers."""
    if shadow is None or shadow.version == chosen:
        return False
    return place_of(f"{salt}\0shadow", request_id) < shadow.share


@dataclass(frozen=True, slots=True)
class ModelSplit:
    """`standby` was stable before and stays loaded. While a rollout decides the weights it is named, with
    the step it is in, and its canary is the first arm; that gets copies of so many of the stable release's
    requests in a second, too, and both are asked so many recorded prompts."""

    model: str
    arms: tuple[tuple[int, float], ...]
    salt: str
    sticky: Sticky = Sticky.REQUEST
    shadow: Shadow | None = None
    standby: int | None = None
    rollout_id: int | None = None
    step: int = 0
    mirror_per_s: float = 0.0
    replay_per_s: float = 0.0

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
        alone = replace(self, rollout_id=None, step=0, mirror_per_s=0.0, replay_per_s=0.0)
        return replace(alone, arms=((version, 1.0),), standby=standby, shadow=shadow)

    def without(self, version: int) -> ModelSplit:
        """One that gets no traffic is named no more."""
        arms = tuple(arm for arm in self.arms if arm[0] != version)
        shadow = None if self.shadow and self.shadow.version == version else self.shadow
        standby = None if self.standby == version else self.standby
        return replace(self, arms=arms, shadow=shadow, standby=standby)

    @property
    def mirror(self) -> int | None:
        """The release that gets copies of what the stable one is asked."""
        return self.arms[0][0] if self.rollout_id is not None and self.mirror_per_s else None

    def with_canary(
        self,
        canary: int,
        weight: float,
        rollout_id: int,
        step: int,
        mirror_per_s: float = 0.0,
        replay_per_s: float = 0.0,
    ) -> ModelSplit:
        """The canary in front: what grows takes keys from its neighbour, and gives none back."""
        arms = ((canary, weight), (self.stable, 1 - weight))
        shadow = None if self.shadow and self.shadow.version == canary else self.shadow
        standby = None if self.standby == canary else self.standby
        begun = replace(self, rollout_id=rollout_id, step=step, arms=arms, shadow=shadow, standby=standby)
        return replace(begun, mirror_per_s=mirror_per_s, replay_per_s=replay_per_s)

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
                "mirror_per_s": self.mirror_per_s,
                "replay_per_s": self.replay_per_s,
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
        value.get("mirror_per_s", 0.0),  # not of 0.7
        value.get("replay_per_s", 0.0),
    )


def first_split(model: str, version: int) -> ModelSplit:
    return ModelSplit(model, ((version, 1.0),), secrets.token_hex(8))
