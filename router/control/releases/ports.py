"""What the router in control needs of the fleet and of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.triton.client import TritonConnection
    from router.triton.control import ModelState


class Control(Protocol):
    """Triton's model control; all but `can_control` raise ControlError."""

    @property
    def can_control(self) -> bool: ...

    async def load(self, model: str) -> None:
        """Returns when it is ready; the members of an ensemble are loaded with it."""

    async def unload(self, model: str) -> None:
        """Returns at once: requests in flight finish."""

    async def index(self) -> Mapping[str, ModelState]:
        """Every model that this Triton has files of."""

    async def is_alive(self) -> bool: ...


class Server(Protocol):
    """One Triton."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def connection(self) -> TritonConnection: ...
    @property
    def control(self) -> Control: ...


class Replica(Protocol):
    @property
    def open_count(self) -> int:
        """Requests of this router in flight there."""

    @property
    def is_up(self) -> bool:
        """Whether requests are sent there."""


class ReplicaSet(Protocol):
    @property
    def replicas(self) -> Sequence[Replica]: ...


class Fleet(Protocol):
    @property
    def servers(self) -> Sequence[Server]: ...
    @property
    def sets(self) -> Mapping[str, ReplicaSet]:
        """By the names of the releases."""


class Rollouts(Protocol):
    """Decides how rollouts proceed."""

    @property
    def is_idle(self) -> bool:
        """Whether the last tick found nothing to do until the store changes."""

    async def tick(self, now_s: float) -> None:
        """Called about twice a second while this router is in control, never twice at once."""
