"""Log lines without secrets and personal data, whatever a library or an exception puts into them."""

from __future__ import annotations

import copy
import json
import logging
import sys
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

import msgspec

from python_backend.wire.visible_text import is_hidden, visible
from router.core.record import RequestLines
from router.telemetry.redaction import redact

if TYPE_CHECKING:
    from types import TracebackType

LogFormat = Literal["text", "json"]

log = logging.getLogger(__name__)
_NEXT_LINE = "\n  "


class Fields(Protocol):
    """Who speaks, for programs."""

    def log_fields(self) -> dict[str, object]: ...


# The request that is being answered; tasks that outlive it log without its id.
speaker: ContextVar[Fields | None] = ContextVar("speaker", default=None)


class RedactingFormatter(logging.Formatter):
    """Redacts messages, tracebacks and stacks; not the time, which looks like a number of somebody.

    Whatever a text holds, it cannot pose as a line of its own, which begins with a time, and no command of a
    terminal is in it.

    A formatter and not a filter: what comes from the loggers of libraries passes the handler alone, and a
    traceback becomes text only here.
    """

    _second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_text:
            record = copy.copy(record)  # another handler's formatter has left its text
            record.exc_text = None if record.exc_info else redact(record.exc_text or "")
        if requests := _requests_in(record):
            begin = self._begin(record)
            return "\n".join(begin + visible(str(line)) for line in requests)
        return visible(super().format(record), also_kept="\n\t").replace("\n", _NEXT_LINE)

    def usesTime(self) -> bool:
        return True

    def formatMessage(self, record: logging.LogRecord) -> str:
        return self._begin(record) + redact(record.message)

    def _begin(self, record: logging.LogRecord) -> str:
        return f"{self.formatTime(record)} {record.levelname} {record.name} "

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """As logging writes it; the text of a second is made once."""
        second = int(record.created)
        if second != self._second[0]:
            self._second = (second, super().formatTime(record, datefmt).partition(",")[0])
        return f"{self._second[1]},{int(record.msecs):03d}"

    def formatException(self, info: object) -> str:
        return redact(super().formatException(info))  # type: ignore[arg-type]  # the stubs keep its type private

    def formatStack(self, stack: str) -> str:
        return redact(super().formatStack(stack))


class JsonFormatter(RedactingFormatter):
    """One object a line: the same, with fields in place of words where a request is spoken of."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S").replace(",", ".") + "Z",
            "level": record.levelname,
            "logger": record.name,
        }
        if requests := _requests_in(record):
            fields["message"] = "request"
            return "\n".join(_json(fields | line.log_fields()) for line in requests)
        fields["message"] = _clean(redact(record.getMessage()))
        if (who := speaker.get()) is not None:
            fields |= who.log_fields()
        if record.exc_info:
            fields["exception"] = _clean(self.formatException(record.exc_info))
        elif record.exc_text:
            fields["exception"] = _clean(redact(record.exc_text))
        return _json(fields)


def _json(fields: dict[str, object]) -> str:
    """Controls that JSON allows in a string, escaped as it escapes others."""
    text = msgspec.json.encode(fields).decode()
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if is_hidden(char) else char for char in text)


def _requests_in(record: logging.LogRecord) -> RequestLines | None:
    told = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return told if isinstance(told, RequestLines) else None


def _clean(text: str) -> str:
    """Without halves of characters, which no JSON can have."""
    return text.encode(errors="backslashreplace").decode()


def set_up_logging(stream: TextIO, level: int = logging.INFO, log_format: LogFormat = "text") -> None:
    """All that the process says goes through one handler: logs, warnings, and errors that nobody caught."""
    # What no line shows need not be found out for each: "Optimization" in logging's documentation.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter() if log_format == "text" else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log.critical("uncaught exception", exc_info=(kind, error, trace))
