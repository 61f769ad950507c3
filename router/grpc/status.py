"""How a call can end: gRPC's codes, and the one error that carries them."""

from __future__ import annotations

from enum import IntEnum


class StatusCode(IntEnum):
    """gRPC's own numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """A call that did not end with OK; `lost` says that no server ended it, because none could be reached.

    One that is not even `sent` was seen by nobody.
    """

    def __init__(self, code: StatusCode, details: str = "", lost: bool = False, sent: bool = True) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details
        self.lost = lost
        self.sent = sent

    def __str__(self) -> str:
        return f"{self.code.name}: {self.details}"


# What an answer means that never reached a gRPC server (gRPC over HTTP/2, "HTTP to gRPC status code").
_BY_HTTP_STATUS = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}
# What a stream reset by the server means; every other code is INTERNAL.
_BY_RESET = {
    7: StatusCode.UNAVAILABLE,  # REFUSED_STREAM
    8: StatusCode.CANCELLED,
    11: StatusCode.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    12: StatusCode.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}


def from_number(number: int) -> StatusCode:
    return StatusCode(number) if 0 <= number <= StatusCode.UNAUTHENTICATED else StatusCode.UNKNOWN


def from_http_status(status: int) -> GrpcError:
    code = _BY_HTTP_STATUS.get(status, StatusCode.UNKNOWN)
    return GrpcError(code, f"the server answered with HTTP status {status}")


def from_reset(error_code: int) -> GrpcError:
    code = _BY_RESET.get(error_code, StatusCode.INTERNAL)
    return GrpcError(code, f"the server reset the stream with HTTP/2 error {error_code}")
