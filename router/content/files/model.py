"""What a file is, and what may be asked of one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from python_backend.wire.errors import ErrorKind, InflightError

UPLOAD_PURPOSES = ("assistants", "batch", "user_data")
BATCH_OUTPUT = "batch_output"
PIECE_BYTES = 1 << 20
SHORTEST_LIFE_S, LONGEST_LIFE_S = 3600, 30 * 86_400
_NAME_CHARS = 255
_ID_CHARS = 64
_FORM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How much may be uploaded at once, and kept by one organisation in all."""

    max_file_bytes: int = 64 << 20
    max_bytes_per_tenant: int = 1 << 30

    @property
    def max_upload_bytes(self) -> int:
        """With the form around the file."""
        return self.max_file_bytes + _FORM_BYTES


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    organisation_id: str
    filename: str
    purpose: str
    size_bytes: int
    created_s: float
    expires_s: float | None = None
    sha256: str = ""

    @property
    def piece_count(self) -> int:
        return -(-self.size_bytes // PIECE_BYTES)

    def render(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": int(self.created_s),
            "expires_at": None if self.expires_s is None else int(self.expires_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }

    def disposition(self) -> str:
        """A header is ASCII; whoever knows the starred form gets the name as it is."""
        plain = "".join(char if char.isascii() and char not in '"\\%' else "_" for char in self.filename)
        return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(self.filename, safe='')}"


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def is_id(text: str) -> bool:
    """Whether it could be the id of anything; what could not is never looked for."""
    return len(text) <= _ID_CHARS and text.isascii() and text.isprintable()


def clean_name(name: str) -> str:
    """The last part of a path, in characters that can be shown."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(char for char in last if char.isprintable()).strip()
    return shown[:_NAME_CHARS] if shown.strip(".") else "file"


def check_purpose(purpose: str) -> None:
    if purpose not in UPLOAD_PURPOSES:
        shown = purpose if purpose.isprintable() and len(purpose) < 40 else "this"
        allowed = ", ".join(UPLOAD_PURPOSES)
        raise _invalid(f"purpose: {shown!r} is not supported; allowed: {allowed}", "purpose")


def lifetime_s(purpose: str, anchor: str | None, seconds: str | None) -> int | None:
    """How long an upload is kept; None is until it is deleted."""
    if anchor is None and seconds is None:
        return LONGEST_LIFE_S if purpose == "batch" else None
    if anchor != "created_at":
        where = "expires_after[anchor]"
        raise _invalid(f"{where}: expected created_at", where)
    where = "expires_after[seconds]"
    if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
        raise _invalid(f"{where}: expected a whole number of seconds", where)
    return check_lifetime_s(int(seconds), where)


def check_lifetime_s(seconds: int, where: str) -> int:
    if not SHORTEST_LIFE_S <= seconds <= LONGEST_LIFE_S:
        raise _invalid(f"{where}: expected {SHORTEST_LIFE_S} to {LONGEST_LIFE_S}, got {seconds}", where)
    return seconds


def _invalid(message: str, param: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message, param)
