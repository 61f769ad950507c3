"""Answers of many streams, played in step as an engine plays them.

What a request wants is in its max_tokens, the one number that every router passes on: the milliseconds
between two tokens times 1,000, plus the number of tokens. 20150 is 150 tokens, one every 20 ms; 8 is 8 tokens
at once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_TOKENS = 1000


def max_tokens(tokens: int, interval_ms: int = 0) -> int:
    return interval_ms * _TOKENS + tokens


class Answer(Protocol):
    """One answer on its way out of a stub."""

    total: int

    def play(self, tokens: int) -> bool:
        """Sends up to so many tokens; False once the answer is complete or its reader has left."""


class Pacer:
    """Gives every answer of one interval its next token at the same moment."""

    def __init__(self) -> None:
        self._open: dict[int, list[Answer]] = {}

    def add(self, answer: Answer) -> None:
        interval_ms, answer.total = divmod(answer.total, _TOKENS)
        if interval_ms == 0:
            answer.play(answer.total)
        elif answer.play(1):
            waiting = self._open.setdefault(interval_ms, [])
            waiting.append(answer)
            if len(waiting) == 1:
                loop = asyncio.get_running_loop()
                self._wait(interval_ms, loop.time() + interval_ms / 1e3)

    def _wait(self, interval_ms: int, due_s: float) -> None:
        asyncio.get_running_loop().call_at(due_s, self._step, interval_ms, due_s)

    def _step(self, interval_ms: int, due_s: float) -> None:
        left = [answer for answer in self._open[interval_ms] if answer.play(1)]
        self._open[interval_ms] = left
        if left:
            self._wait(interval_ms, max(due_s + interval_ms / 1e3, asyncio.get_running_loop().time()))
