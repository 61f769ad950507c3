"""What the path tells of its times; metrics and objectives are made of it by whoever is handed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from python_backend.wire.errors import ErrorKind
    from router.core.record import Record


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
