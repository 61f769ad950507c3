"""Stands in for the files that tenants have uploaded."""

from __future__ import annotations

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.tenant import Caller


class FakeFiles:
    """By organisation and id: name and content."""

    def __init__(self, files: dict[tuple[str, str], tuple[str, bytes]] | None = None) -> None:
        self.files = files or {}

    async def read(self, caller: Caller, file_id: str, max_bytes: int) -> tuple[str, bytes]:
        found = self.files.get((caller.organisation.id, file_id))
        if found is None:
            raise InflightError(ErrorKind.NOT_FOUND, f"No such File object: {file_id}", "file_id")
        return found
