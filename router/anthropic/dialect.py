"""How a message is written: whole, or block by block in events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from router.http import sse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.messages import ToolCall
    from router.core.record import Record
    from router.request.choice import Choice, TokenLog

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_UNSIGNED = {"type": "signature_delta", "signature": ""}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_TEXT = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"text_delta","text":'
)


class MessagesDialect:
    """White space is held back while no text block is open: before a call it is nothing, before text text.

    Thoughts that nobody asked for are not shown.
    """

    headers = sse.HEADERS
    silence = _PING

    def __init__(self, record: Record, model: str, shows_thoughts: bool) -> None:
        self._record = record
        self._model = model
        self._shows_thoughts = shows_thoughts
        self._blocks = 0  # that have begun
        self._open = ""  # its type
        self._blank = ""
        self._before_text = b""

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        (choice,), (text,) = choices, texts
        calls = [{**_block(call), "input": call.values} for call in choice.tool_calls]
        text = text.strip() if calls else text
        content: list[dict[str, Any]] = []
        if choice.thoughts and self._shows_thoughts:
            content.append({"type": "thinking", "thinking": choice.thoughts, "signature": ""})
        if text.strip():
            content.append({"type": "text", "text": text})
        return msgspec.json.encode(self._message([*content, *calls], **_end(choice)))

    def opening(self, choices: int) -> bytes:
        message = self._message([], stop_reason=None, stop_sequence=None)
        return _event("message_start", message=message) + _PING

    def thought_event(self, index: int, text: str) -> bytes:
        if not self._shows_thoughts:
            return b""
        before = b""
        if self._open != "thinking":
            before = self._begin({"type": "thinking", "thinking": "", "signature": ""})
        return before + self._delta({"type": "thinking_delta", "thinking": text})

    def text_event(self, index: int, text: str) -> bytes:
        before = b""
        if self._open != "text":
            self._blank += text
            if not self._blank.strip():
                return b""
            text, self._blank = self._blank, ""
            before = self._begin({"type": "text", "text": ""})
            self._before_text = _TEXT % (self._blocks - 1)
        return b"%b%b%b}}\n\n" % (before, self._before_text, sse.json_string(text))

    def logged_event(self, index: int, text: str, log: TokenLog) -> bytes:
        return self.text_event(index, text)

    def call_event(self, index: int, number: int, call: ToolCall) -> bytes:
        self._blank = ""
        begun = self._begin({**_block(call), "input": {}})
        arguments = msgspec.json.encode(call.values).decode()
        told = self._delta({"type": "input_json_delta", "partial_json": arguments})
        return begun + told + self._end_block()

    def closing(self, choices: Sequence[Choice]) -> bytes:
        (choice,) = choices
        ended = _event("message_delta", delta=_end(choice), usage=self._usage())
        return self._end_block() + ended + _event("message_stop")

    def _message(self, content: list[dict[str, Any]], **end: Any) -> dict[str, Any]:
        return {
            "id": self._record.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **end,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        """As far as the answer has come. What was found in the cache is not counted among the rest."""
        record = self._record
        return {
            "input_tokens": record.prompt_tokens - record.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": record.cached_tokens,
            "output_tokens": record.completion_tokens,
        }

    def _begin(self, block: dict[str, Any]) -> bytes:
        before = self._end_block()
        self._blocks += 1
        self._open = block["type"]
        return before + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _end_block(self) -> bytes:
        if not self._open:
            return b""
        last = self._delta(_UNSIGNED) if self._open == "thinking" else b""
        self._open = ""
        return last + _event("content_block_stop", index=self._blocks - 1)


def _block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_", 1), "name": call.name}


def _end(choice: Choice) -> dict[str, Any]:
    stop = choice.stopped_by if choice.finish_reason == "stop" else None
    reason = "stop_sequence" if stop is not None else _REASONS[choice.finish_reason]
    return {"stop_reason": reason, "stop_sequence": stop}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\n" % kind.encode() + sse.event({"type": kind, **fields})
