"""Reads answers in gpt-oss's form, harmony: messages in channels, each with a head and marks around it.

What is said in `analysis` is thought, what goes to a function is a call, and all else is text. Nothing
depends on how the answer was cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from router.core.answer_reader import CallList
from router.core.answer_text import tail_length
from router.core.call_formats import WrittenCall
from router.core.messages import ToolCall

CHANNEL = "<|channel|>"
ASSISTANT = "<|start|>assistant"  # what a prompt ends with
FINAL = f"{CHANNEL}final<|message|>"  # what a text begins with that follows the prompt at once
_MARKS = ("<|start|>", CHANNEL, "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
_mark = re.compile("|".join(re.escape(mark) for mark in _MARKS))
_recipient = re.compile(r"\bto=([^\s<]+)")
_channel = re.compile(r"<\|channel\|>\s*(\w+)")
_BEGINNINGS = ("<|", "to=")
_FUNCTIONS = "functions."


def in_channels(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the history, its thoughts as the template has them; with a call it takes one text."""
    if "reasoning_content" not in message:
        return message
    message = dict(message)
    thought = message.pop("reasoning_content")
    if "tool_calls" in message:
        thought, message["content"] = "\n\n".join(filter(None, [thought, message["content"]])), ""
    return {**message, "thinking": thought}


class _Part(Enum):
    HEAD = "head"
    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"


class HarmonyReader:
    """The prompt has ended with the beginning of a head: a channel or a recipient comes first."""

    def __init__(self, calls: CallList) -> None:
        self._calls = calls
        self._part = _Part.HEAD
        self._is_begun = False
        self._head = ""
        self._name = ""  # of the function that is being called
        self._call: list[str] = []
        self._held = ""
        self._thoughts: list[str] = []

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self._calls.found

    @property
    def held(self) -> int:
        return len(self._held) + sum(map(len, self._call))

    @property
    def is_thinking(self) -> bool:
        return self._part is _Part.THOUGHT

    def feed(self, chunk: str) -> str:
        text, self._held = self._held + chunk, ""
        if not self._is_begun and not self._begins(text):
            self._held = text
            return ""
        out, start = [], 0
        for found in _mark.finditer(text):
            out += [self._add(text[start : found.start()]), self._pass(found[0])]
            start = found.end()
        end = len(text) - tail_length(text[start:], _MARKS)
        self._held = text[end:]
        return "".join([*out, self._add(text[start:end])])

    def _begins(self, text: str) -> bool:
        """Whether it is certain how the answer begins: one without a head is text."""
        begun = text.lstrip()
        if any(each.startswith(begun) for each in _BEGINNINGS) and begun not in _BEGINNINGS:
            return False
        self._is_begun = True
        if not begun.startswith(_BEGINNINGS):
            self._part = _Part.TEXT
        return True

    def _add(self, text: str) -> str:
        """Puts it where it belongs; returns what is said."""
        if self._part is _Part.HEAD:
            self._head += text
        elif self._part is _Part.CALL:
            self._call.append(text)
        elif self._part is _Part.THOUGHT:
            self._thoughts.append(text)
        else:
            return text
        return ""

    def _pass(self, mark: str) -> str:
        """A mark ends a message, begins one, or is part of a head; returns what turned out to be text."""
        if self._part is _Part.HEAD and mark == "<|message|>":
            self._open()
            return ""
        if self._part is _Part.HEAD and mark in (CHANNEL, "<|constrain|>"):
            self._head += mark
            return ""
        left = self._close()
        self._head = mark if mark == CHANNEL else ""
        return left

    def _open(self) -> None:
        recipient, channel = _recipient.search(self._head), _channel.search(self._head)
        to = recipient[1] if recipient else ""
        self._name = to.removeprefix(_FUNCTIONS)
        if to.startswith(_FUNCTIONS) or self._name in self._calls.names:
            self._part = _Part.CALL
        elif to or (channel is not None and channel[1] == "analysis"):
            self._part = _Part.THOUGHT  # or what it says to tools of its maker, which are not here
        else:
            self._part = _Part.TEXT

    def _close(self) -> str:
        part, self._part = self._part, _Part.HEAD
        if part is not _Part.CALL:
            return ""
        written, self._call = "".join(self._call), []
        try:
            arguments = msgspec.json.decode(written.strip() or "{}", type=msgspec.Raw)
            return "" if self._calls.add([WrittenCall(self._name, arguments)]) else written
        except (ValueError, RecursionError):
            return written

    def flush(self) -> str:
        held, self._held = self._held, ""
        if not self._is_begun:
            return held
        return self._add(held) + self._close()

    def take_thoughts(self) -> str:
        taken, self._thoughts = "".join(self._thoughts), []
        return taken

    def drop(self, first: int) -> None:
        self._calls.drop(first)
