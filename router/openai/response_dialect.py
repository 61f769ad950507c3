"""How a response is written: item by item in events with numbers, or whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import (
    Item,
    call_item,
    message_item,
    new_id,
    reasoning_item,
    text_part,
)
from router.core.messages import ToolCall
from router.http import sse
from router.openai.dialects import Dialect, Ended
from router.openai.log_probs import chat_log_probs
from router.request.choice import TokenLog

_ANNOUNCEMENT = ("response.created", "response.queued")
_BEGIN = ("response.created", "response.in_progress")
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FAILURES = {ErrorKind.RATE_LIMITED: "rate_limit_exceeded", ErrorKind.QUOTA: "rate_limit_exceeded"}


class ResponsesDialect(Dialect):
    """Keeps the items as they come. The last event is not part of `closing`: before it is sent, the response
    is stored, and storing may change it.

    White space is held back while no message is open: before a call it is nothing, before text it is text.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        created_s: float,
        head: dict[str, Any],
        is_announced: bool = False,
        namespaces: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        super().__init__(request_id, model, created_s)
        self.output: list[Item] = []
        self._namespaces = namespaces or {}
        self._is_summary = (head.get("reasoning") or {}).get("summary") is not None
        self._thought_id = ""
        self._thoughts: list[str] = []
        self._head = head
        # The events before the first text, in the order of their numbers; the first so many were told before.
        self._before = (*_ANNOUNCEMENT, _BEGIN[-1]) if is_announced else _BEGIN
        self._told_before = len(_ANNOUNCEMENT) if is_announced else 0
        self._sequence = len(self._before)
        self._message_id = ""
        self._texts: list[str] = []
        self._blank = ""
        self._log: list[dict[str, Any]] = []
        self._told = 0  # of the log, in events
        self._before_text = b""
        self._ended: Ended | None = None

    def queued(self) -> dict[str, Any]:
        return self._response("queued")

    def announcement(self) -> bytes:
        """The first events of a response that is made in the background, before it has its turn."""
        return self._numbered(0, len(_ANNOUNCEMENT), self.queued())

    def opening(self, choices: int) -> bytes:
        start, self._told_before = self._told_before, len(self._before)
        return self._numbered(start, len(self._before), self._response("in_progress"))

    def _numbered(self, start: int, end: int, response: dict[str, Any]) -> bytes:
        return b"".join(
            _event({"type": self._before[number], "response": response, "sequence_number": number})
            for number in range(start, end)
        )

    def thought_event(self, index: int, text: str) -> bytes:
        before = b"" if self._thought_id else self._begin_thought()
        self._thoughts.append(text)
        return before + self._next(f"{self._thought_kind}.delta", **self._thought_place, delta=text)

    def text_event(self, index: int, text: str) -> bytes:
        before = self._end_thought("completed")
        if not self._message_id:
            self._blank += text
            if not self._blank.strip():
                return before
            text, self._blank = self._blank, ""
            before += self._begin_message()
        return before + self._delta(text)

    def logged_event(self, index: int, text: str, log: TokenLog) -> bytes:
        self._log += _entries(log)
        return self.text_event(index, text)

    def call_event(self, index: int, number: int, call: ToolCall) -> bytes:
        before = self._end_thought("completed")
        before += self._end_message("completed") if self._message_id else b""
        self._blank, self._log = "", []
        item = self._call(call)
        kind, field = (
            ("custom_tool_call_input", "input")
            if call.is_custom
            else ("function_call_arguments", "arguments")
        )
        place = {"item_id": item.id, "output_index": len(self.output)}
        begun = {**item.shown, "status": "in_progress", field: ""}
        whole = {field: call.arguments} if call.is_custom else {"name": call.name, field: call.arguments}
        self.output.append(item)
        return b"".join(
            [
                before,
                self._next("output_item.added", output_index=place["output_index"], item=begun),
                self._next(f"{kind}.delta", **place, delta=call.arguments),
                self._next(f"{kind}.done", **place, **whole),
                self._next("output_item.done", output_index=place["output_index"], item=item.shown),
            ]
        )

    def _call(self, call: ToolCall) -> Item:
        namespace, name = self._namespaces.get(call.name, (None, call.name))
        return call_item(call.id, name, call.arguments, namespace, call.is_custom)

    def closing(self, choices: Sequence[Ended]) -> bytes:
        self._ended = choices[0]
        self._log += _entries(choices[0].log)
        before = self._end_thought(self._status)
        if not self._message_id and not self.output:
            before += self._begin_message()
            if self._blank:
                before += self._delta(self._blank)
        return before + (self._end_message(self._status) if self._message_id else b"")

    def whole(self, choices: Sequence[Ended], texts: Sequence[str]) -> bytes:
        """Nothing yet: `response` has it."""
        self._ended = choices[0]
        self._log = _entries(choices[0].log)
        calls, text, thoughts = choices[0].tool_calls, texts[0], choices[0].thoughts
        if thoughts:
            self.output.append(self._thought(thoughts, self._status if not text else "completed"))
        if calls:
            text = text.strip()
        if text or not (calls or thoughts):
            self.output.append(self._message(text, self._status))
        self.output += [self._call(call) for call in calls]
        return b""

    def response(self) -> dict[str, Any]:
        """As it has ended."""
        return {**self._response(self._status), "completed_at": int(time.time())}

    def last_event(self, response: dict[str, Any]) -> bytes:
        return self._next(response["status"], response=response)

    def failure(self, error: InflightError) -> dict[str, Any]:
        """The response that has come to nothing."""
        if error.kind is ErrorKind.CANCELLED:
            return self._response("cancelled")
        code = _FAILURES.get(error.kind, "invalid_prompt" if error.kind.is_callers_fault else "server_error")
        return {**self._response("failed"), "error": {"code": code, "message": error.message}}

    def failure_event(self, error: InflightError) -> bytes:
        if self._sequence == len(self._before):  # of what comes before the first text, some may not be told
            self._sequence = self._told_before
        return self._next("failed", response=self.failure(error))

    @property
    def _status(self) -> str:
        reason = "" if self._ended is None else self._ended.finish_reason
        return "incomplete" if reason in _INCOMPLETE else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        ended = self._ended
        reason = None if ended is None else _INCOMPLETE.get(ended.finish_reason)
        has_ended = status in ("completed", "incomplete")
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason and has_ended else None,
            "output": [item.shown for item in self.output] if has_ended else [],
            "usage": None if ended is None else _usage(ended),
        }

    @property
    def _thought_kind(self) -> str:
        return "reasoning_summary_text" if self._is_summary else "reasoning_text"

    @property
    def _thought_place(self) -> dict[str, Any]:
        which = "summary_index" if self._is_summary else "content_index"
        return {"item_id": self._thought_id, "output_index": len(self.output), which: 0}

    @property
    def _thought_part(self) -> str:
        return "reasoning_summary_part" if self._is_summary else "content_part"

    def _begin_thought(self) -> bytes:
        self._thought_id, self._thoughts = new_id("rs"), []
        begun = {**reasoning_item("", self._is_summary, self._thought_id).shown, "status": "in_progress"}
        [part] = begun["summary"] or begun["content"]
        begun |= {"summary": [], "content": []}
        return self._next("output_item.added", output_index=len(self.output), item=begun) + self._next(
            f"{self._thought_part}.added", **self._thought_place, part=part
        )

    def _end_thought(self, status: str) -> bytes:
        if not self._thought_id:
            return b""
        item = self._thought("".join(self._thoughts), status)
        [part] = item.shown["summary"] or item.shown["content"]
        place, self._thought_id = self._thought_place, ""
        self.output.append(item)
        return b"".join(
            [
                self._next(f"{self._thought_kind}.done", **place, text=item.text),
                self._next(f"{self._thought_part}.done", **place, part=part),
                self._next("output_item.done", output_index=place["output_index"], item=item.shown),
            ]
        )

    def _thought(self, text: str, status: str) -> Item:
        item = reasoning_item(text, self._is_summary, self._thought_id or None)
        item.shown["status"] = status
        return item

    def _begin_message(self) -> bytes:
        self._message_id, self._texts, self._told = new_id("msg"), [], 0
        index = len(self.output)
        place = {"item_id": self._message_id, "output_index": index, "content_index": 0}
        kind = "response.output_text.delta"
        frame = msgspec.json.encode({"type": kind, **place})
        self._before_text = b'event: %b\ndata: %b,"delta":' % (kind.encode(), frame[:-1])
        begun = {**message_item("assistant", [], "", self._message_id).shown, "status": "in_progress"}
        return self._next("output_item.added", output_index=index, item=begun) + self._next(
            "content_part.added", **place, part=text_part("assistant", "")
        )

    def _delta(self, text: str) -> bytes:
        self._texts.append(text)
        self._sequence += 1
        log = b"[]"
        if self._told < len(self._log):
            log, self._told = sse.one_line(msgspec.json.encode(self._log[self._told :])), len(self._log)
        rest = b',"logprobs":%b,"sequence_number":%d}\n\n' % (log, self._sequence - 1)
        return self._before_text + sse.json_string(text) + rest

    def _end_message(self, status: str) -> bytes:
        item = self._message("".join(self._texts), status)
        index = len(self.output)
        place = {"item_id": item.id, "output_index": index, "content_index": 0}
        part = item.shown["content"][0]
        self.output.append(item)
        self._message_id = ""
        return b"".join(
            [
                self._next("output_text.done", **place, text=item.text, logprobs=part["logprobs"]),
                self._next("content_part.done", **place, part=part),
                self._next("output_item.done", output_index=index, item=item.shown),
            ]
        )

    def _message(self, text: str, status: str) -> Item:
        part = {**text_part("assistant", text), "logprobs": self._log}
        self._log = []
        item = message_item("assistant", [part], text, self._message_id or None)
        item.shown["status"] = status
        return item

    def _next(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return _event({"type": f"response.{kind}", **fields, "sequence_number": self._sequence - 1})


def _event(value: dict[str, Any]) -> bytes:
    return b"event: %b\n" % value["type"].encode() + sse.event(value)


def _entries(log: TokenLog | None) -> list[dict[str, Any]]:
    return [] if log is None else chat_log_probs(log.take())["content"]


def _usage(ended: Ended) -> dict[str, Any]:
    return {
        "input_tokens": ended.prompt_tokens,
        "input_tokens_details": {"cached_tokens": ended.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": ended.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
        "total_tokens": ended.prompt_tokens + ended.completion_tokens,
    }
