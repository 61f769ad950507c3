"""Reads a form with one file in it, a little at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from python_backend.wire.errors import ErrorKind, InflightError

_READ_BYTES = 256 << 10
_FIELD_BYTES = 4096
_MOST_PARTS = 16
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


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
        raise _invalid("Content-Type: multipart/form-data needs a boundary")
    reader = _Reader(boundary)
    try:
        while chunk := source.read(_READ_BYTES):
            reader.read(chunk)
    except FormParserError as error:
        raise _invalid(f"the body is not a valid form: {error}") from None
    if not reader.is_complete:
        raise _invalid("the form is cut off: its last boundary is missing")
    if not reader.form.has_file:
        raise _invalid("Missing required parameter: file", "file")
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
            raise _invalid(f"the form has more than {_MOST_PARTS} parts")
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
                raise _invalid("file: expected one file, got several", "file")
            self.form.has_file = True
        elif self._name not in _FIELDS:
            shown = self._name if self._name.isprintable() and len(self._name) < 100 else "a part of the form"
            raise _invalid(f"Unrecognized request argument supplied: {shown}", shown)

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._value += data[start:end]
            if len(self._value) > _FIELD_BYTES:
                raise _invalid(f"{self._name}: longer than {_FIELD_BYTES} bytes", self._name)
            return
        if not self.form.size_bytes:
            # What looked like a boundary at the end of the chunk before comes from the parser's own copy.
            behind = start if data is self._chunk else start - end
            self.form.start_bytes = self._chunk_start_bytes + behind
        self.form.size_bytes += end - start

    def _end(self) -> None:
        if self._name != "file":
            self.form.fields[self._name] = self._value.decode("utf-8", "replace")


def _invalid(message: str, param: str | None = None) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message, param)
