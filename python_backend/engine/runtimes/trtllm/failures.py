"""What an error of TensorRT-LLM means: one request is over, or all of them."""

from __future__ import annotations

import re

from python_backend.engine.runtimes.hosted.host import Unreadable
from python_backend.wire.errors import ErrorKind, InflightError

# A step that fails is told to every request in it as an error of its own. After these none succeeds any more.
_FATAL = re.compile(
    r"cuda ?error|illegal (memory access|address)|device-side assert|launch failure|unrecoverable",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"out of memory", re.IGNORECASE)


def failure_of(error: Exception, request_error: type[Exception]) -> InflightError | None:
    """What the sequence ends with; None where TensorRT-LLM itself broke.

    `request_error` is the package's own class for an error of one request.
    """
    if isinstance(error, ValueError):
        return InflightError(ErrorKind.INVALID_REQUEST, f"TensorRT-LLM refuses the request: {error}")
    if isinstance(error, request_error) and is_fatal(str(error)):
        return None
    if isinstance(error, (request_error, TypeError, Unreadable)):
        return InflightError(ErrorKind.ENGINE_FAILED, f"TensorRT-LLM could not answer: {error}")
    return None


def is_fatal(message: str) -> bool:
    """A GPU that ran out of memory serves smaller steps; one that faulted needs a new process."""
    return _FATAL.search(message) is not None and _MEMORY.search(message) is None
