"""What is told of requests, by the doors and on the path: metrics, traces and logs are made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from python_backend.wire.errors import ErrorKind
    from router.core.record import Record


class Accounts(Protocol):
    """Counts, traces and logs each request, accepted or not, whichever door it came through."""

    def begin_http(self, record: Record, method: str, headers: Mapping[str, str], is_known: bool) -> None:
        """`is_known`: there is something at its path."""

    def begin_rpc(self, record: Record, method: str, metadata: Sequence[tuple[str, Any]]) -> None: ...

    def end(self, record: Record, status: int, grpc_code: int | None = None) -> None:
        """Once, when the last byte is out; a status of 0: the client left before it was told anything."""


class Meter(Protocol):
    """Of the requests of one model, release, tenant and tier."""

    def closed(self, record: Record, now_s: float) -> None:
        """One has ended, for whatever reason."""

    def first_chunk(self, seconds: float) -> None:
        """From arrival to the first chunk of an answer."""

    def first_token(self, seconds: float) -> None:
        """The same for the objectives, once a request: what comes whole tells nothing of its first token."""

    def gaps(self, gaps: Sequence[tuple[float, int]]) -> None:
        """Seconds between two chunks of one answer, and how many tokens came with the later one."""

    def gap(self, seconds: float) -> None:
        """Seconds between two chunks; the objectives are told of it by `inter_token`."""

    def inter_token(self, seconds: float, tokens: int) -> None:
        """For the objectives: seconds for each of so many tokens."""

    def model_failed(self, kind: ErrorKind) -> None:
        """Triton or the engine gave an error."""


class Meters(Protocol):
    def opened(self, record: Record) -> Meter:
        """For a request that was accepted, whose release and tier are known."""
