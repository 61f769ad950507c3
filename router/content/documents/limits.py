"""How much of a file is taken, and the error that says so."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.wire.errors import ErrorKind, InflightError


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """`max_files` are those of one request, the rest holds for each file.

    How much text a model can read is another limit, its own.
    """

    max_files: int = 20
    max_bytes: int = 10 << 20
    max_characters: int = 400_000
    max_pdf_pages: int = 500
    pdf_time_s: float = 20.0
    pdf_memory_bytes: int = 512 << 20


class Unreadable(Exception):
    """A file that cannot be used; the message says why, and what could be."""


def refusal(where: str, name: str, reason: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, f"{where}: the file '{name}' {reason}", where)
