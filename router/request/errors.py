"""How an answer ends that cannot be given: what is told of an error, with which status and headers."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.request.error_shapes import Problem, shape_for

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.error_shapes import ErrorShape

_CODES = {
    ErrorKind.INVALID_REQUEST: None,
    ErrorKind.UNSUPPORTED: "unsupported_parameter",
    ErrorKind.INTERNAL: "internal_error",
}
_JSON = ("content-type", "application/json")
# Where the prompt is, in the bodies of these.
_PROMPT_FIELDS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}


class HttpError(Exception):
    """A request that is wrong as HTTP, before it is wrong as anything else."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def write_error(exchange: Exchange, record: Record, error: Exception) -> None:
    """Ends the answer with an error: a status while there is still one to set, an event after that."""
    if exchange.ended:
        return
    request = exchange.request
    shape = shape_for(request.path, request.headers)
    status, body, headers = render_error(record, shape, error)
    if exchange.started:
        exchange.end(shape.event(body))
    else:
        exchange.respond(status, body, headers)


def render_error(
    record: Record, shape: ErrorShape, error: Exception
) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Status, body and headers of an answer; the record has the error from then on."""
    problem, headers = _told(error, record.request_id)
    if problem.param is None and problem.code == ErrorKind.CONTEXT_LENGTH_EXCEEDED.label:
        problem = replace(problem, param=_PROMPT_FIELDS.get(record.route))
    record.error = error.kind.label if isinstance(error, InflightError) else str(problem.status)
    body = shape.body(problem, record.request_id)
    return shape.status(problem), body, [_JSON, *record.headers(), *headers]


def _told(error: Exception, request_id: str) -> tuple[Problem, tuple[tuple[str, str], ...]]:
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, HttpError):
        return Problem(error.status, error.message), error.headers
    if not isinstance(error, InflightError) or error.kind is ErrorKind.INTERNAL:
        message = f"the server failed to answer this request; its id is {request_id}"
        return Problem(500, message, "internal_error"), headers
    status = error.kind.http_status
    if error.retry_after_s is not None:
        wait_ms = math.ceil(error.retry_after_s * 1000)
        headers = (("retry-after", str(-(-wait_ms // 1000))), ("retry-after-ms", str(wait_ms)))
    elif status == 503:
        # Spread, so that clients refused together do not come back together.
        headers = (("retry-after", str(random.randint(1, 3))),)
    elif status == 401:
        headers = (("www-authenticate", "Bearer"),)
    code = error.code or _CODES.get(error.kind, error.kind.label)
    return Problem(status, error.message, code, error.param), headers


def respond_json(exchange: Exchange, record: Record, value: Any, status: int = 200) -> None:
    respond_encoded(exchange, record, msgspec.json.encode(value), status)


def respond_encoded(exchange: Exchange, record: Record, body: bytes, status: int = 200) -> None:
    exchange.respond(status, body, [_JSON, *record.headers()])


# What an error of the engine says in the contract's words -> in the caller's, and the field at fault.
_API_WORDS = {
    "the prompt holds token id": ("prompt: there is no token", "prompt"),
    "embedding_bias holds token id": ("logit_bias: there is no token", "logit_bias"),
}
_GUIDE = "guided_decoding_guide"
_TOO_LONG = re.compile(r"the prompt has (\d+) tokens; prompt and answer together may have at most (\d+)")


def in_api_words(error: InflightError, guide_field: str | None = None) -> InflightError:
    """`guide_field` is where the caller wrote what the engine knows as a guide."""
    if not error.kind.is_callers_fault:
        return error
    if found := _TOO_LONG.search(error.message):
        return too_long(int(found[2]), int(found[1]))
    words = {_GUIDE: (guide_field, guide_field), **_API_WORDS} if guide_field else _API_WORDS
    for said, (replacement, field) in words.items():
        if said in error.message:
            return InflightError(error.kind, error.message.replace(said, replacement), field)
    return error


def too_long(context_tokens: int, prompt_tokens: int, is_least: bool = False) -> InflightError:
    """In OpenAI's words, by which clients know that less would fit."""
    requested = f"{prompt_tokens} tokens{' or more' if is_least else ''}"
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested "
        f"{requested} (in the prompt; none are left for the answer). "
        "Please reduce the length of the prompt."
    )
    return InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, message)
