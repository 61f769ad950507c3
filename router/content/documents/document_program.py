"""Run as a program of its own: takes documents on standard input, gives their texts on standard output.

A PDF is a program for a viewer, and may be written to exhaust whoever reads it; a large table takes long. So
they are read here, where nothing of the router is imported or within reach, behind everybody's answers. Each
document has a child of its own, under limits on memory and time that the system enforces, and leaves nothing
behind for the next one.
"""

from __future__ import annotations

import csv
import ctypes
import io
import logging
import os
import re
import resource
import signal
import struct
import sys
import warnings
from dataclasses import dataclass
from typing import NoReturn

READABLE = "text, Markdown, CSV and PDF"
PDF, TABLE, TEXT = b"p", b"c", b"t"
# As whoever asks writes and reads them. A document is its kind and size, then itself. An answer is whether it
# is the text, how much time of a processor it took and its size, then the text, or why there is none.
DOCUMENT = struct.Struct(">cQ")
ANSWER = struct.Struct(">?dQ")
_READY = b"\n"
_PR_SET_PDEATHSIG = 1
_BROKEN = b"needs too much memory or time to read"
_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"?')


class Unreadable(Exception):
    """A file that cannot be used; the message says why, and what could be."""


@dataclass(frozen=True)
class Limits:
    """Of one document, in the order of the program's arguments."""

    pages: int
    characters: int
    memory_bytes: int
    cpu_s: int


def main(limits: Limits) -> None:
    die_with_parent()
    warnings.simplefilter("ignore")
    logging.disable()
    documents, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(_READY)
    answers.flush()
    while len(head := documents.read(DOCUMENT.size)) == DOCUMENT.size:
        kind, size = DOCUMENT.unpack(head)
        data = documents.read(size)
        if kind == PDF:
            import pypdf  # noqa: F401 (here once, not in each child)
        is_text, text, cpu_s = read_in_child(kind, data, limits)
        answers.write(ANSWER.pack(is_text, cpu_s, len(text)) + text)
        answers.flush()


def die_with_parent() -> None:
    """Stopped as it may be, it would not see its standard input end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def read_in_child(kind: bytes, data: bytes, limits: Limits) -> tuple[bool, bytes, float]:
    """Whether it is the text, the text or the reason why there is none, and the time of a processor."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        _be_child(kind, data, limits, writable)
    os.close(writable)
    with open(readable, "rb") as pipe:
        answer = pipe.read()
    _, status, used = os.wait4(child, 0)
    cpu_s = used.ru_utime + used.ru_stime
    return (False, _BROKEN, cpu_s) if status else (answer[:1] == b"+", answer[1:], cpu_s)


def _be_child(kind: bytes, data: bytes, limits: Limits, writable: int) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            answer = "+" + read(kind, data, limits.pages, limits.characters)
        except Unreadable as reason:
            answer = f"-{reason}"
        with open(writable, "wb") as pipe:
            pipe.write(answer.encode())
        status = 0
    finally:
        os._exit(status)


def read(kind: bytes, data: bytes, max_pages: int, max_characters: int) -> str:
    """The text of a document; raises Unreadable."""
    try:
        if kind != PDF:
            return read_plain(data, kind == TABLE, max_characters)
        return read_pdf(data, max_pages, max_characters)
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable("needs too much memory to read") from None
    except RecursionError:
        raise Unreadable("is nested too deeply to read") from None
    except Exception as error:  # pypdf fails on broken files in as many ways as files can be broken
        raise Unreadable(f"cannot be read as a PDF ({type(error).__name__})") from None


def read_pdf(data: bytes, max_pages: int, max_characters: int) -> str:
    from pypdf import PdfReader

    document = PdfReader(io.BytesIO(data))
    if document.is_encrypted:
        raise Unreadable("is encrypted; send it without its password")
    pages = len(document.pages)
    if pages == 0:
        raise Unreadable("is a PDF with no pages")
    if pages > max_pages:
        raise Unreadable(f"has {pages} pages; allowed: at most {max_pages}")
    texts, characters = [], 0
    for page in document.pages:
        # Half of a pair of surrogates, which broken fonts yield, cannot be sent anywhere.
        text = page.extract_text().encode("utf-8", "replace").decode().strip()
        characters += len(text)
        if characters > max_characters:
            raise Unreadable(f"has more than {max_characters} characters of text, the limit")
        texts.append(text)
    if not characters:
        raise Unreadable("contains no text: its pages are images, perhaps scanned, and there is no OCR")
    return "\n\n".join(filter(None, texts))


def read_plain(data: bytes, is_table: bool, max_characters: int) -> str:
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Unreadable(f"is neither UTF-8 text nor a PDF; supported: {READABLE}")
    if not text.strip():
        raise Unreadable("contains only white space")
    if len(text) > max_characters:  # before it is made a table, which may take long
        raise Unreadable(f"has {len(text)} characters; allowed: at most {max_characters}")
    return render_table(text) if is_table else text


def render_table(text: str) -> str:
    """A Markdown table: the first row is its head, every row is there as it is, however many cells it has."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)) if row]
    except csv.Error as error:
        raise Unreadable(f"is not a table of comma-separated values: {error}") from None
    if not rows:
        raise Unreadable("is a table with no rows")
    head, *body = map(_line, rows)
    rule = "|" + " --- |" * len(rows[0])
    return "\n".join([head, rule, *body])


def _delimiter(text: str) -> str:
    """The likeliest: the one that the first line has most of outside of quotes."""
    first = _QUOTED.sub("", text.lstrip()).partition("\n")[0]
    return max(_DELIMITERS, key=first.count)


def _line(row: list[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in row) + " |"


def _cell(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


if __name__ == "__main__":
    main(Limits(*map(int, sys.argv[1:])))
