"""How long a client waits for its answer to begin, as it says itself."""

from __future__ import annotations

from math import inf

from python_backend.wire.errors import ErrorKind, InflightError

HEADER = "x-inflight-deadline-ms"
_MOST_MS = 3_600_000


def read_deadline(given: str | None, remaining_s: float | None, arrived_s: float) -> float:
    """On the clock of `arrived_s`: by the header, or by what is left of the call, whichever is sooner."""
    deadline_s = inf if remaining_s is None else arrived_s + remaining_s
    if given is None:
        return deadline_s
    is_number = given.isascii() and given.isdigit() and len(given) <= len(str(_MOST_MS))
    if not is_number or not 1 <= int(given) <= _MOST_MS:
        shown = given if given.isprintable() and len(given) <= 20 else "something else"
        message = f"{HEADER}: expected 1 to {_MOST_MS} milliseconds, got {shown}"
        raise InflightError(ErrorKind.INVALID_REQUEST, message, HEADER)
    return min(deadline_s, arrived_s + int(given) / 1000)
