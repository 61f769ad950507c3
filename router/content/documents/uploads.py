"""Files that were uploaded, as documents to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.files.pieces import content

if TYPE_CHECKING:
    from router.core.tenant import Caller
    from router.store.access import StoreAccess


class UploadedFiles:
    def __init__(self, store: StoreAccess) -> None:
        self._store = store

    async def read(self, caller: Caller, file_id: str, max_bytes: int) -> tuple[str, bytes]:
        if not file_id.isascii() or not file_id.isprintable():
            raise InflightError(ErrorKind.NOT_FOUND, "there is no file with that id", "file_id")
        file, data = await content(self._store, caller.organisation.id, file_id, max_bytes)
        return file.filename, data
