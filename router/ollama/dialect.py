"""How Ollama's clients read an answer: whole, or in lines of JSON, with what was measured in the last."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from router.http import sse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.messages import ToolCall
    from router.core.record import Record
    from router.request.choice import Choice, TokenLog

NDJSON = "application/x-ndjson"


class Lines:
    """`is_chat`: pieces are parts of a message, otherwise plain texts."""

    headers = (("content-type", NDJSON), *sse.HEADERS[1:])
    silence = b" "  # of the next line

    def __init__(self, record: Record, model: str, is_chat: bool) -> None:
        self._record = record
        self._model = model
        self._is_chat = is_chat

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        (choice,), (text,) = choices, texts
        calls = [_call(number, call) for number, call in enumerate(choice.tool_calls)]
        text = text.strip() if calls else text
        return msgspec.json.encode(self.last(choice.finish_reason, text, calls, choice.thoughts))

    def opening(self, choices: int) -> bytes:
        return b""

    def text_event(self, index: int, text: str) -> bytes:
        return _line({**self._piece(text), "done": False})

    def logged_event(self, index: int, text: str, log: TokenLog) -> bytes:
        return self.text_event(index, text)

    def thought_event(self, index: int, text: str) -> bytes:
        return _line({**self._piece("", thoughts=text), "done": False})

    def call_event(self, index: int, number: int, call: ToolCall) -> bytes:
        return _line({**self._piece("", [_call(number, call)]), "done": False})

    def closing(self, choices: Sequence[Choice]) -> bytes:
        return _line(self.last(choices[0].finish_reason))

    def last(
        self, reason: str, text: str = "", calls: Sequence[dict[str, Any]] = (), thoughts: str = ""
    ) -> dict[str, Any]:
        reason = "stop" if reason == "tool_calls" else reason
        end = {"done": True, "done_reason": reason, **measured(self._record)}
        return {**self._piece(text, calls, thoughts), **end}

    def _piece(self, text: str, calls: Sequence[dict[str, Any]] = (), thoughts: str = "") -> dict[str, Any]:
        head = {"model": self._model, "created_at": datetime.now(timezone.utc)}
        more = {"thinking": thoughts} if thoughts else {}
        if not self._is_chat:
            return {**head, "response": text, **more}
        message = {"role": "assistant", "content": text, **more}
        return {**head, "message": {**message, "tool_calls": calls} if calls else message}


def measured(record: Record) -> dict[str, int]:
    """In nanoseconds, by the engine's clock where it is this machine's; nothing was loaded."""
    now_s = time.monotonic()
    found = {"total_duration": _ns(now_s - record.arrived_s), "load_duration": 0}
    first_s, sent_s = record.first_token_s, record.dispatched_s
    if first_s is None or sent_s is None:
        return found
    stages = record.stages(now_s)
    last_s = record.received_s or first_s
    return {
        **found,
        "prompt_eval_count": record.prompt_tokens,
        "prompt_eval_duration": _ns(stages.get("prefill", first_s - sent_s)),
        "eval_count": record.completion_tokens,
        "eval_duration": _ns(stages.get("decode", last_s - first_s)),
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _call(number: int, call: ToolCall) -> dict[str, Any]:
    function = {"index": number, "name": call.name, "arguments": call.values}
    return {"id": call.id, "function": function}


def _line(value: dict[str, Any]) -> bytes:
    return sse.one_line(msgspec.json.encode(value)) + b"\n"
