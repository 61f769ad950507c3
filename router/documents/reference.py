"""A file as a request names it."""

from __future__ import annotations

import msgspec


class FileReference(msgspec.Struct, frozen=True):
    """One that was uploaded, by its id, or all of it as a base64 data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None
