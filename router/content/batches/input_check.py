"""Reads an input file into checked lines, a piece of the file and a transaction at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from python_backend.wire.errors import InflightError
from router.content.batches import claims, rows
from router.content.batches.claims import Line
from router.content.batches.decisions import Event, TooLate
from router.content.batches.rows import Batch
from router.content.files.model import PIECE_BYTES, StoredFile
from router.content.files.rows import find, read_piece
from router.core.bounded_json import TooMuchJson, decode_bounded
from router.store.database import StoreAccess

MAX_LINES = 50_000
MAX_ERRORS = 50  # more would tell nobody anything new
_CUSTOM_ID_CHARS = 512
# What a request has around its body.
_ENVELOPE_BYTES = 4096


class Problem(msgspec.Struct, frozen=True):
    """One error of an input file, as OpenAI shows it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One line as it was found; `text` is None where it is longer than any may be."""

    number: int
    start_bytes: int
    text: bytes | None


class LineSplitter:
    """Cuts a file that comes in pieces; holds at most one line of the longest allowed."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()
        self._start_bytes = 0
        self._skipped_bytes = 0
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[Found]:
        *whole, rest = piece.split(b"\n")
        for text in whole:
            self._hold(text)
            yield self._cut(1)
        self._hold(rest)

    def end(self) -> Iterator[Found]:
        """The last line, where nothing ends it."""
        if self._rest or self._skipped_bytes:
            yield self._cut(0)

    def _hold(self, text: bytes) -> None:
        if self._skipped_bytes or len(self._rest) + len(text) > self._max_line_bytes:
            self._skipped_bytes += len(self._rest) + len(text)
            self._rest.clear()
        else:
            self._rest += text

    def _cut(self, end_bytes: int) -> Found:
        self._number += 1
        text = None if self._skipped_bytes else bytes(self._rest)
        found = Found(self._number, self._start_bytes, text)
        self._start_bytes += len(self._rest) + self._skipped_bytes + end_bytes
        self._rest.clear()
        self._skipped_bytes = 0
        return found


class _Request(msgspec.Struct, frozen=True):
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class _Body(msgspec.Struct, frozen=True):
    model: str
    stream: bool | None = None
    background: Any = None


_decoder = msgspec.json.Decoder(_Request)


@dataclass(slots=True)
class LineCheck:
    """Judges the lines of one input file, in order; `check_model` raises for one that cannot be used."""

    endpoint: str
    max_line_bytes: int
    check_model: Callable[[str], None]
    model: str | None = None
    problems: list[Problem] = field(default_factory=list)
    count: int = 0
    _seen: set[str] = field(default_factory=set)

    @property
    def is_hopeless(self) -> bool:
        return len(self.problems) >= MAX_ERRORS or self.count > MAX_LINES

    def check(self, found: Found) -> Line | None:
        """The line, or None for one that is empty or wrong; what is wrong is added to `problems`."""
        if found.text is not None and not found.text.strip():
            return None
        self.count += 1
        if self.count > MAX_LINES:
            message = f"the input file has more than {MAX_LINES} requests"
            self.problems.append(Problem("too_many_tasks", message))
            return None
        problem = self._problem(found)
        if isinstance(problem, Problem):
            self.problems.append(msgspec.structs.replace(problem, line=found.number))
            return None
        assert found.text is not None
        return Line(found.number, problem, found.start_bytes, len(found.text))

    def finish(self) -> None:
        if not self.count:
            self.problems.append(Problem("empty_file", "the input file contains no requests"))

    def _problem(self, found: Found) -> Problem | str:
        """The custom_id of a line that is in order."""
        if found.text is None:
            return Problem("line_too_long", f"a request may have at most {self.max_line_bytes} bytes")
        try:
            request = decode_bounded(_decoder, found.text, has_numbers=True)
        except msgspec.ValidationError as error:
            return _missing(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Problem("invalid_json_line", "this line is not valid JSON")
        except TooMuchJson as error:
            return Problem("invalid_json_line", str(error))
        return self._wrong_head(request) or self._wrong_body(request.body) or request.custom_id

    def _wrong_head(self, request: _Request) -> Problem | None:
        custom_id = request.custom_id
        if not (1 <= len(custom_id) <= _CUSTOM_ID_CHARS and custom_id.isprintable()):
            message = f"custom_id: expected 1 to {_CUSTOM_ID_CHARS} printable characters"
            return Problem("invalid_custom_id", message, "custom_id")
        if custom_id in self._seen:
            message = f"custom_id: {custom_id!r} is used by an earlier line; each must be unique"
            return Problem("duplicate_custom_id", message, "custom_id")
        self._seen.add(custom_id)
        if request.method != "POST":
            return Problem("invalid_method", "method: expected POST", "method")
        if request.url != self.endpoint:
            message = f"url: expected {self.endpoint}, the endpoint of this batch"
            return Problem("mismatched_url", message, "url")
        return None

    def _wrong_body(self, fields: dict[str, Any]) -> Problem | None:
        try:
            body = msgspec.convert(fields, _Body)
        except msgspec.ValidationError as error:
            return _missing(str(error), "body.")
        if body.stream:
            return Problem("invalid_value", "body.stream: not allowed in a batch", "body.stream")
        if body.background:
            message = "body.background: not allowed in a batch, which runs in the background anyway"
            return Problem("invalid_value", message, "body.background")
        if self.model is not None and body.model != self.model:
            message = f"body.model: expected {self.model}, as in the lines before; a batch has one model"
            return Problem("mismatched_model", message, "body.model")
        if self.model is None:
            try:
                self.check_model(body.model)
            except InflightError as error:
                return Problem(error.kind.label, error.message, "body.model")
            self.model = body.model
        return None


def _missing(problem: str, within: str = "") -> Problem:
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if what.startswith("Object missing required field"):
        name = within + ".".join(filter(None, [path, what.split("`")[1]]))
        return Problem("missing_required_parameter", f"Missing required parameter: {name}", name)
    name = within + path
    message = f"{name}: {what[0].lower()}{what[1:]}" if name else "expected an object"
    return Problem("invalid_value", message, name or None)


class LostHold(Exception):
    """Another router works on this batch, or it is over."""


class InputCheck:
    """Begun anew by whichever router finds that the last one died over it."""

    def __init__(
        self,
        store: StoreAccess,
        batch: Batch,
        worker: str,
        lease_s: float,
        max_body_bytes: int,
        check_model: Callable[[str], None],
    ) -> None:
        self._store = store
        self._batch = batch
        self._worker = worker
        self._lease_s = lease_s
        max_line_bytes = max_body_bytes + _ENVELOPE_BYTES
        self._splitter = LineSplitter(max_line_bytes)
        self._check = LineCheck(batch.endpoint, max_line_bytes, check_model)

    async def run(self) -> None:
        """Raises LostHold; a store that is away leaves the batch to be checked later."""
        try:
            file = await self._store.write(self._begin, self._batch.organisation_id)
        except InflightError as error:
            if not error.kind.is_callers_fault:
                raise
            self._check.problems.append(Problem("invalid_input_file", error.message, "input_file_id"))
        else:
            for number in range(file.piece_count):
                await self._store.write(partial(self._read, file=file, number=number), file.organisation_id)
                if self._check.is_hopeless:
                    break
            self._check.finish()
        await self._store.write(self._end, self._batch.organisation_id)

    def _begin(self, connection: Connection) -> StoredFile:
        self._hold(connection)
        claims.remove_all(connection, self._batch.id)
        # As of its making: a file that expires meanwhile is kept for the batch.
        created_s = self._batch.life.created_s
        return find(connection, self._batch.organisation_id, self._batch.input_file_id, created_s)

    def _read(self, connection: Connection, file: StoredFile, number: int) -> None:
        self._hold(connection)
        found = list(self._splitter.feed(read_piece(connection, file.id, number)))
        if (number + 1) * PIECE_BYTES >= file.size_bytes:
            found += self._splitter.end()
        lines = []
        for each in found:
            line = self._check.check(each)
            if self._check.is_hopeless:
                return
            if line is not None:
                lines.append(line)
        if not self._check.problems:
            claims.add(connection, self._batch.id, lines)

    def _end(self, connection: Connection) -> None:
        self._hold(connection)
        problems = self._check.problems
        try:
            if problems:
                claims.remove_all(connection, self._batch.id)
                errors = msgspec.json.encode(problems).decode()
                rows.advance(connection, self._batch.id, Event.REJECTED, time.time(), errors=errors)
            else:
                facts = {"model": self._check.model, "total_count": self._check.count}
                rows.advance(connection, self._batch.id, Event.CHECKED, time.time(), **facts)
        except TooLate as status:
            raise LostHold(str(status)) from None

    def _hold(self, connection: Connection) -> None:
        if not rows.hold(connection, self._batch, self._worker, time.time(), self._lease_s):
            raise LostHold(self._batch.id)
