"""What a file is, what may be asked of one, and how it is read from the form that uploads it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import quote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from router.request.decoding import invalid

UPLOAD_PURPOSES = ("assistants", "batch", "user_data", "vision")
BATCH_OUTPUT = "batch_output"
PIECE_BYTES = 1 << 20
SHORTEST_LIFE_S, LONGEST_LIFE_S = 3600, 30 * 86_400
_NAME_CHARS = 255
_ID_CHARS = 64
_READ_BYTES = 256 << 10
_FIELD_BYTES = 4096
_MOST_PARTS = 16
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
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
        raise invalid(f"purpose: {shown!r} is not supported; allowed: {allowed}", "purpose")


def lifetime_s(purpose: str, anchor: str | None, seconds: str | None) -> int | None:
    """How long an upload is kept; None is until it is deleted."""
    if anchor is None and seconds is None:
        return LONGEST_LIFE_S if purpose == "batch" else None
    if anchor != "created_at":
        where = "expires_after[anchor]"
        raise invalid(f"{where}: expected created_at", where)
    where = "expires_after[seconds]"
    if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
        raise invalid(f"{where}: expected a whole number of seconds", where)
    return check_lifetime_s(int(seconds), where)


def check_lifetime_s(seconds: int, where: str) -> int:
    if not SHORTEST_LIFE_S <= seconds <= LONGEST_LIFE_S:
        raise invalid(f"{where}: expected {SHORTEST_LIFE_S} to {LONGEST_LIFE_S}, got {seconds}", where)
    return seconds


@dataclass(slots=True)
class UploadForm:
    """The fields, and where in the body the file lies: a part is carried as it is, in one piece."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    has_file: bool = False
    start_bytes: int = 0
    size_bytes: int = 0


def read_form(source: IO[bytes], content_type: str) -> UploadForm:
    """Raises INVALID_REQUEST for what is not a form, and for fields that nobody knows."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise invalid("Content-Type: multipart/form-data needs a boundary")
    reader = _Reader(boundary)
    try:
        while chunk := source.read(_READ_BYTES):
            reader.read(chunk)
    except FormParserError as error:
        raise invalid(f"the body is not a valid form: {error}") from None
    if not reader.is_complete:
        raise invalid("the form is incomplete: its last boundary is missing")
    if not reader.form.has_file:
        raise invalid("Missing required parameter: file", "file")
    return reader.form


class _Reader:
    def __init__(self, boundary: bytes) -> None:
        self.form = UploadForm()
        self._parts = 0
        self._chunk = b""
        self._chunk_start_bytes = 0
        self._header = [b"", b""]
        self._name = ""
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._check_name,
                "on_part_data": self._take,
                "on_part_end": self._end,
            },
        )

    @property
    def is_complete(self) -> bool:
        return self._parser.state == MultipartState.END

    def read(self, chunk: bytes) -> None:
        self._chunk = chunk
        self._parser.write(chunk)
        self._chunk_start_bytes += len(chunk)

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise invalid(f"the form has more than {_MOST_PARTS} parts")
        self._name, self._value = "", bytearray()

    def _add_header(self, side: int, data: bytes) -> None:
        self._header[side] += data

    def _end_header(self) -> None:
        name, value = self._header
        self._header = [b"", b""]
        if name.lower() == b"content-disposition":
            options = parse_options_header(value)[1]
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            if self._name == "file":
                self.form.filename = options.get(b"filename", b"").decode("utf-8", "replace")

    def _check_name(self) -> None:
        if self._name == "file":
            if self.form.has_file:
                raise invalid("file: expected one file, got several", "file")
            self.form.has_file = True
        elif self._name not in _FIELDS:
            shown = self._name if self._name.isprintable() and len(self._name) < 100 else "a part of the form"
            raise invalid(f"Unrecognized request argument supplied: {shown}", shown)

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._value += data[start:end]
            if len(self._value) > _FIELD_BYTES:
                raise invalid(f"{self._name}: longer than {_FIELD_BYTES} bytes", self._name)
            return
        if not self.form.size_bytes:
            # What looked like a boundary at the end of the chunk before comes from the parser's own copy.
            behind = start if data is self._chunk else start - end
            self.form.start_bytes = self._chunk_start_bytes + behind
        self.form.size_bytes += end - start

    def _end(self) -> None:
        if self._name != "file":
            self.form.fields[self._name] = self._value.decode("utf-8", "replace")
