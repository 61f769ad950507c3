"""Errors as an OpenAI client expects them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange

_CODES = {
    ErrorKind.INVALID_REQUEST: None,
    ErrorKind.UNSUPPORTED: "unsupported_parameter",
    ErrorKind.INTERNAL: "internal_error",
}
_JSON = ("content-type", "application/json")
TRITON_PREFIX = "/v2"


class HttpError(Exception):
    """A request that is wrong as HTTP, before it is wrong as anything else."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


_TYPES = {403: "permission_error", 429: "rate_limit_error"}


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "invalid_request_error") if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def write_error(exchange: Exchange, record: Record, error: Exception) -> None:
    """Ends the answer with an error: a status while there is still one to set, an event after that."""
    if exchange.ended:
        return
    status, body, headers = render_error(record, exchange.request.path, error)
    if exchange.started:
        exchange.end(b"data: " + body + b"\n\n")
    else:
        exchange.respond(status, body, headers)


def render_error(record: Record, path: str, error: Exception) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Status, body and headers of an answer; the record has the error from then on."""
    status, body, headers = _render(error, record.request_id)
    record.error = error.kind.label if isinstance(error, InflightError) else str(status)
    return status, shaped_for(path, body), [_JSON, *record.headers(), *headers]


def shaped_for(path: str, body: bytes) -> bytes:
    """Triton's clients read the message where OpenAI's find an object."""
    if not path.startswith(TRITON_PREFIX):
        return body
    return msgspec.json.encode({"error": msgspec.json.decode(body)["error"]["message"]})


def _render(error: Exception, request_id: str) -> tuple[int, bytes, tuple[tuple[str, str], ...]]:
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, HttpError):
        return error.status, error_body(error.status, error.message), error.headers
    if not isinstance(error, InflightError) or error.kind is ErrorKind.INTERNAL:
        message = f"the server failed to answer this request; its id is {request_id}"
        return 500, error_body(500, message, "internal_error"), headers
    status = error.kind.http_status
    if error.retry_after_s is not None:
        wait_ms = math.ceil(error.retry_after_s * 1000)
        headers = (("retry-after", str(-(-wait_ms // 1000))), ("retry-after-ms", str(wait_ms)))
    elif status == 503:
        # Spread, so that clients refused together do not come back together.
        headers = (("retry-after", str(random.randint(1, 3))),)
    elif status == 401:
        headers = (("www-authenticate", "Bearer"),)
    code = _CODES.get(error.kind, error.kind.label)
    return status, error_body(status, error.message, code, error.param), headers


def respond_json(exchange: Exchange, record: Record, value: Any, status: int = 200) -> None:
    respond_encoded(exchange, record, msgspec.json.encode(value), status)


def respond_encoded(exchange: Exchange, record: Record, body: bytes, status: int = 200) -> None:
    exchange.respond(status, body, [_JSON, *record.headers()])


# What an error of the engine says in the contract's words -> in the caller's, and the field at fault.
_API_WORDS = {
    "guided_decoding_guide": ("response_format", "response_format"),
    "the prompt holds token id": ("prompt: there is no token", "prompt"),
    "embedding_bias holds token id": ("logit_bias: there is no token", "logit_bias"),
}


def in_api_words(error: InflightError) -> InflightError:
    for words, (replacement, field) in _API_WORDS.items():
        if error.kind.is_callers_fault and words in error.message:
            return InflightError(error.kind, error.message.replace(words, replacement), field)
    return error
