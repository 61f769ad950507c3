"""The events of answers that are kept, for readers who come late, come back, or come elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError

_COME_BACK_S = 2.0


class Claim(msgspec.Struct, frozen=True):
    """Whoever comes first with a key says what it is for, and what its answer is made from."""

    fingerprint: str
    request_id: str
    seed: int
    began_s: float


class EventSink(Protocol):
    """Where the events of one answer go. One that `is_shared` can be ended by another router.

    `is_taken`: another one makes it now, and what is added here is for nobody.
    """

    @property
    def is_taken(self) -> bool: ...
    @property
    def is_shared(self) -> bool: ...
    def add(self, events: Sequence[bytes], basis: bytes = b"") -> None:
        """Whole ones, and what another router needs to make them again. Nobody waits for it."""

    def close(self) -> None:
        """No more will come; those there are stay for a while."""

    def leave(self, last: bytes, is_kept: bool) -> None:
        """It cannot be ended here: who reads it now gets `last`, which is no event of it.

        Where it `is_kept` somebody else may end it, otherwise it never was.
        """

    async def is_followed(self) -> bool:
        """Whether somebody reads it by another router."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim that holds. With a sink the answer is to be made here: all of it, or what comes after `told`.

    `bases` came with what was told. `take`: how often somebody has begun to make it, this time included.
    """

    claim: Claim
    sink: EventSink | None = None
    told: Sequence[bytes] = ()
    bases: Sequence[bytes] = ()
    take: int = 1


class EventLog(Protocol):
    """Events are numbered from 0."""

    def open(self, tenant: str, name: str, take: int = 1) -> EventSink:
        """For an answer whose name nobody else has, except the routers that made it in earlier takes."""

    async def claim(self, tenant: str, name: str, claim: Claim, after: int | None = None) -> Claimed:
        """For an answer that may be there already, be made elsewhere, or have been left by its router.

        `after` is given for one that was begun before: the number of the last event that the caller has. What
        is told then goes at least as far. Raises NotKept where that cannot be had any more, and LogAway where
        nobody knows at the moment; such an answer is never begun anew.
        """

    async def follow(self, name: str, after: int) -> AsyncIterator[Sequence[bytes]]:
        """Those behind a number, and those to come, to the last; raises where they are no longer kept.

        Raises `Moved` meanwhile where the router that makes them is gone, and `LogAway` where they may be
        kept, but cannot be read.
        """

    def forget(self, name: str) -> None:
        """They are deleted with their answer."""


class Moved(InflightError):
    """Nobody makes the answer any more, or somebody else does: claim it again."""

    def __init__(self) -> None:
        super().__init__(ErrorKind.ENGINE_FAILED, "the router that was generating this answer is gone")


class LogAway(InflightError):
    """Whether the answer is still kept is unknown: it is neither made again nor given up."""

    def __init__(self) -> None:
        message = (
            "the answer is stored in Redis, which this router cannot reach at the moment: "
            "send the same request again, with the same headers"
        )
        super().__init__(ErrorKind.OVERLOADED, message, retry_after_s=_COME_BACK_S)


class NotKept(InflightError):
    def __init__(self) -> None:
        message = "the events of this response are not, or no longer, stored; read it without stream"
        super().__init__(ErrorKind.INVALID_REQUEST, message, "stream")
