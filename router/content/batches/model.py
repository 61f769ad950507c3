"""What a batch is, and how it and its answers are shown."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from router.content.batches.status import Life, Status

WINDOW = "24h"
WINDOW_S = 86_400
EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed, because the batch was cancelled.")
_TIMES = tuple(each.name for each in fields(Life) if each.name.endswith("_s"))


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    organisation_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    life: Life
    metadata: str = "null"
    output_lifetime_s: int | None = None
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: str = "[]"
    total_count: int = 0
    completed_count: int = 0
    failed_count: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    worker: str | None = None
    lease_s: float | None = None

    @property
    def status(self) -> Status:
        return self.life.status

    @property
    def unanswered(self) -> int:
        return self.total_count - self.completed_count - self.failed_count

    def render(self) -> dict[str, Any]:
        """Files are named once they are whole."""
        errors = msgspec.json.decode(self.errors)
        is_over = self.status.is_over
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": self.status.value,
            "output_file_id": self.output_file_id if is_over else None,
            "error_file_id": self.error_file_id if is_over else None,
            **self._times(),
            "request_counts": {
                "total": self.total_count,
                "completed": self.completed_count,
                "failed": self.failed_count,
            },
            "usage": self._usage(),
            "metadata": msgspec.json.decode(self.metadata),
        }

    def _times(self) -> dict[str, int | None]:
        times = {name: getattr(self.life, name) for name in _TIMES}
        if self.status is not Status.EXPIRED:
            times["expired_s"] = None  # its time is up, but it is not over
        return {f"{name[:-2]}_at": None if at_s is None else int(at_s) for name, at_s in times.items()}

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(12)}"


def answered_line(batch_id: str, number: int, custom_id: str, response: Response) -> str:
    """One line of an output file; the body is carried over as it was answered."""
    shown = {"status_code": response.status, "request_id": response.request_id, "body": response.body}
    return _line(batch_id, number, custom_id, shown, None)


def dropped_line(batch_id: str, number: int, custom_id: str, why: tuple[str, str]) -> str:
    return _line(batch_id, number, custom_id, None, {"code": why[0], "message": why[1]})


class Response(msgspec.Struct, frozen=True):
    status: int
    request_id: str
    body: msgspec.Raw


def _line(batch_id: str, number: int, custom_id: str, response: Any, error: Any) -> str:
    line_id = f"batch_req_{batch_id.removeprefix('batch_')}_{number}"
    shown = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(shown).decode()
