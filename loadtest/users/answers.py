"""What came back, and when: server-sent events read from bytes as they arrive, values alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from loadtest.results import RequestResult


@dataclass(slots=True)
class StreamedAnswer:
    """An answer in flight. Moments are whatever clock `feed` is given; a piece is an event with text."""

    moments_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_whole: bool = False
    error: str = ""
    _rest: bytes = b""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def feed(self, data: bytes, now_s: float) -> None:
        """Lines end at a line feed alone: text may hold other kinds of line ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self._event(line[6:].strip(), now_s)

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.is_whole = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = str(event["error"].get("message"))
            return
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.completion_tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            if text:
                self.moments_s.append(now_s)
                self.texts.append(text)


def note_moments(result: RequestResult, moments_s: Sequence[float]) -> None:
    """The moments of an answer's pieces, since it was asked for, made into what is known of its tokens.

    The events do not tell how many tokens each has: as many in each piece after the first. A router that
    keeps up sends one at a time.
    """
    result.pieces = len(moments_s)
    if not moments_s:
        return
    result.first_token_s = moments_s[0]
    result.completion_tokens = result.completion_tokens or len(moments_s)
    gaps_s = [after - before for before, after in pairwise(moments_s)]
    if gaps_s and result.completion_tokens > 1:
        tokens_each = (result.completion_tokens - 1) / len(gaps_s)
        result.longest_gap_s = max(gaps_s)
        result.gaps_s = [round(gap_s / tokens_each, 6) for gap_s in gaps_s]


def embedding_tokens(body: bytes) -> int:
    """Of an answer with vectors; raises ValueError where there are none."""
    answer: dict[str, Any] = json.loads(body)
    if not answer.get("data") or not answer["data"][0].get("embedding"):
        raise ValueError("the answer holds no embedding")
    return int(answer["usage"]["prompt_tokens"])


def error_sentence(status: int, body: bytes) -> str:
    """The server's own, in one line."""
    try:
        error = json.loads(body)["error"]
        return f"HTTP {status}: {error['message'] if isinstance(error, dict) else error}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: {body[:200].decode(errors='replace')}"
