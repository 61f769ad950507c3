"""The lines of an input file: found, checked, and what is wrong with them said by number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import InflightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LINES = 50_000
MAX_ERRORS = 50  # more would tell nobody anything new
_CUSTOM_ID_CHARS = 512


class Problem(msgspec.Struct, frozen=True):
    """One error of an input file, as OpenAI shows it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch, by where it lies in the input file."""

    number: int
    custom_id: str
    start_bytes: int
    size_bytes: int


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
            self.problems.append(Problem("empty_file", "the input file has no requests in it"))

    def _problem(self, found: Found) -> Problem | str:
        """The custom_id of a line that is in order."""
        if found.text is None:
            return Problem("line_too_long", f"a request may have at most {self.max_line_bytes} bytes")
        try:
            request = _decoder.decode(found.text)
        except msgspec.ValidationError as error:
            return _missing(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Problem("invalid_json_line", "this line is not valid JSON")
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
            return Problem("invalid_value", "body.stream: a batch has no streams", "body.stream")
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
