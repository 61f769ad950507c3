"""Reads tables and PDFs within limits, PDFs in a process that cannot hurt this one."""

from __future__ import annotations

import asyncio
import csv
import io
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from python_backend.wire.errors import InflightError
from router.request.decoding import invalid
from router.request.fair_pool import FairPool

_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"?')
_PROGRAM = Path(__file__).with_name("pdf_program.py")
_AT_ONCE = 2
_WAITING_EACH = 8
_ENVIRONMENT = ("LD_LIBRARY_PATH",)  # where the interpreter may have its own libraries


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
    return invalid(f"{where}: the file '{name}' {reason}", where)


def render_table(text: str) -> str:
    """A Markdown table: the first row is its head, every row is there as it is, however many cells it has."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)) if row]
    except csv.Error as error:
        raise Unreadable(f"is not a table of comma-separated values: {error}") from None
    if not rows:
        raise Unreadable("is a table without any row")
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


class _Answer(msgspec.Struct, frozen=True):
    text: str | None = None
    reason: str = ""


class PdfReader:
    """A process a file, one for each tenant and two in all; whoever leaves has it stopped."""

    def __init__(self, limits: DocumentLimits) -> None:
        self._limits = limits
        self._pool = FairPool("PDFs to be read", _AT_ONCE, _WAITING_EACH)

    async def read(self, tenant: str, data: bytes) -> str:
        async with self._pool.turn(tenant):
            answer = await self._ask(data)
        if answer.text is None:
            raise Unreadable(answer.reason)
        return answer.text

    async def _ask(self, data: bytes) -> _Answer:
        limits = self._limits
        # Isolated: what lies in the working directory, or in the environment, is not imported.
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(_PROGRAM),
            str(limits.max_pdf_pages), str(limits.max_characters), str(limits.pdf_memory_bytes),
            str(math.ceil(limits.pdf_time_s)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )  # fmt: skip
        try:
            written, _ = await asyncio.wait_for(program.communicate(data), limits.pdf_time_s)
        except asyncio.TimeoutError:
            return _Answer(reason=f"takes more than {limits.pdf_time_s:g} s to be read")
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        if program.returncode:
            return _Answer(reason="needs too much memory or time to be read")
        return msgspec.json.decode(written, type=_Answer)
