"""Which release of a model answers a request: the one it is pinned to, or the split's choice for its key."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from router.releases.splits import place_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from router.releases.splits import Split


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
