"""How the doors tell of requests that they have taken and answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.core.record import Record


class Accounts(Protocol):
    """Counts, traces and logs each request, accepted or not, whichever door it came through."""

    def begin_http(self, record: Record, method: str, headers: Mapping[str, str], is_known: bool) -> None:
        """`is_known`: there is something at its path."""

    def begin_rpc(self, record: Record, method: str, metadata: Sequence[tuple[str, Any]]) -> None: ...

    def end(self, record: Record, status: int, grpc_code: int | None = None) -> None:
        """Once, when the last byte is out; a status of 0: the client left before it was told anything."""
