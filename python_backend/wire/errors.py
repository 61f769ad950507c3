"""What can go wrong, whose fault it is, and how it is told to a Triton client and to an HTTP client.

    InflightError
      invalid_request          the caller's: a value that is not allowed
      context_length_exceeded  the caller's: prompt and answer do not fit the model
      unsupported              the caller's: allowed by the contract, not honoured here
      model_not_found          the caller's: no such model
      invalid_api_key          the caller's: no key, or one that is not valid
      permission_denied        the caller's: the key is not for this
      not_found                the caller's: no such object, or one of somebody else
      conflict                 the caller's: the object is not in a state for this
      too_large                the caller's: more bytes than are taken
      content_filter           the caller's: a rule of the operator forbids this text
      rate_limit_exceeded      the caller's: too much in too short a time; try again later
      insufficient_quota       the caller's: the budget is spent
      cancelled                nobody's: the caller left or asked to stop
      overloaded               ours, for now: try again later
      engine_failed            ours: the engine died or a step broke; other requests go on
      internal                 ours: a defect

Triton's streaming protocol carries an error as text alone, without a code, so the kind travels at the
head of the text ("kind: sentence") and is read back from there.
"""

from __future__ import annotations

import re
from enum import Enum


class ErrorKind(Enum):
    INVALID_REQUEST = ("invalid_request", 400, "INVALID_ARG")
    CONTEXT_LENGTH_EXCEEDED = ("context_length_exceeded", 400, "INVALID_ARG")
    UNSUPPORTED = ("unsupported", 400, "UNSUPPORTED")
    MODEL_NOT_FOUND = ("model_not_found", 404, "NOT_FOUND")
    INVALID_KEY = ("invalid_api_key", 401, "INVALID_ARG")
    FORBIDDEN = ("permission_denied", 403, "INVALID_ARG")
    NOT_FOUND = ("not_found", 404, "NOT_FOUND")
    CONFLICT = ("conflict", 409, "INVALID_ARG")
    TOO_LARGE = ("too_large", 413, "INVALID_ARG")
    CONTENT_FILTER = ("content_filter", 400, "INVALID_ARG")
    RATE_LIMITED = ("rate_limit_exceeded", 429, "UNAVAILABLE")
    QUOTA = ("insufficient_quota", 429, "UNAVAILABLE")
    CANCELLED = ("cancelled", 499, "CANCELLED")
    OVERLOADED = ("overloaded", 503, "UNAVAILABLE")
    ENGINE_FAILED = ("engine_failed", 503, "UNAVAILABLE")
    INTERNAL = ("internal", 500, "INTERNAL")

    def __init__(self, label: str, http_status: int, triton_code: str) -> None:
        self.label = label
        self.http_status = http_status
        self.triton_code = triton_code

    @property
    def is_callers_fault(self) -> bool:
        return self.http_status < 499


# The owner of an engine begins with it when the process died under a request; and while it starts another.
ENGINE_DIED = "the engine process ended"
ENGINE_AWAY = "the engine process is being started again"
# What a process of the pipeline says that is asked for the rest of a text of which another had the beginning.
TEXT_LOST = "the process with the beginning of this text ended"

_BY_LABEL = {kind.label: kind for kind in ErrorKind}
_TAGGED = re.compile(r"(?:^|[\s,])(" + "|".join(_BY_LABEL) + r"): (.*)", re.DOTALL)

# Triton's own texts that mean "not now" rather than "broken".
_TRITON_BUSY = (
    "exceeds maximum queue size",
    "request timeout expired",
    "stopped accepting new inference requests",
    "is not ready",
    "stub process",
    "server is not ready",
    "model is not available",
)


class InflightError(Exception):
    """One failure: its kind, a sentence for the caller, and the parameter at fault when there is one.

    `retry_after_s` is when trying again may help, where that is known; `code` says more of what is wrong than
    its kind does, to HTTP clients.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        param: str | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.code = code

    def again(self) -> InflightError:
        """The same failure, to be raised: one that was raised holds on to all it went through."""
        return InflightError(self.kind, self.message, self.param, self.retry_after_s, self.code)

    def to_text(self) -> str:
        return f"{self.kind.label}: {self.message}"

    @classmethod
    def from_text(cls, text: str) -> InflightError:
        """Reads back what `to_text` wrote, from behind whatever Triton put in front of it."""
        if tagged := _TAGGED.search(text):
            return cls(_BY_LABEL[tagged[1]], tagged[2])
        lowered = text.lower()
        if any(phrase in lowered for phrase in _TRITON_BUSY):
            return cls(ErrorKind.OVERLOADED, text)
        if lowered.startswith("request for unknown model"):
            return cls(ErrorKind.MODEL_NOT_FOUND, text)
        return cls(ErrorKind.INTERNAL, text)
