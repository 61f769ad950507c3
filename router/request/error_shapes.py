"""What went wrong, in the shape that the clients of each API expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

TRITON_PREFIX = "/v2"
ANTHROPIC_VERSION = "anthropic-version"
_TYPES = {403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    message: str
    code: str | None = None
    param: str | None = None


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "invalid_request_error") if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


class ErrorShape:
    """How the clients of one API are told: by a status and a body, or by an event of a stream that has begun.

    This is OpenAI's; `schema` is what it is called in the description of the API.
    """

    schema = "Error"

    def status(self, problem: Problem) -> int:
        return problem.status

    def body(self, problem: Problem, request_id: str) -> bytes:
        return error_body(problem.status, problem.message, problem.code, problem.param)

    def event(self, body: bytes) -> bytes:
        return b"data: %b\n\n" % body


class TritonShape(ErrorShape):
    schema = "TritonError"

    def body(self, problem: Problem, request_id: str) -> bytes:
        return msgspec.json.encode({"error": problem.message})


class OllamaShape(TritonShape):
    schema = "OllamaError"

    def event(self, body: bytes) -> bytes:
        return body + b"\n"


class AnthropicShape(ErrorShape):
    schema = "AnthropicError"

    def status(self, problem: Problem) -> int:
        if problem.status < 500:
            return problem.status
        return 529 if problem.code == "overloaded" else 500

    def body(self, problem: Problem, request_id: str) -> bytes:
        kind = _ANTHROPIC_TYPES.get(self.status(problem), "invalid_request_error")
        message = problem.message
        if problem.code == "context_length_exceeded":  # these words make agents shorten their history
            message = f"prompt is too long: {message}"
        error = {"type": kind, "message": message}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})

    def event(self, body: bytes) -> bytes:
        return b"event: error\n" + super().event(body)


_OPENAI, _ANTHROPIC = ErrorShape(), AnthropicShape()
_BY_PREFIX = ((TRITON_PREFIX, TritonShape()), ("/api/", OllamaShape()), ("/v1/messages", _ANTHROPIC))


def shape_for(path: str, headers: Mapping[str, str]) -> ErrorShape:
    for prefix, shape in _BY_PREFIX:
        if path.startswith(prefix):
            return shape
    is_anthropics = path.startswith("/v1/models") and ANTHROPIC_VERSION in headers
    return _ANTHROPIC if is_anthropics else _OPENAI
