"""Guides that allow exactly one answer, and a compiler that is ready when the test says so."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.request import Guide, GuideKind
from python_backend.wire.errors import InflightError


def only(*token_ids: int) -> Guide:
    """The guide that allows this answer alone."""
    return Guide(GuideKind.REGEX, " ".join(map(str, token_ids)))


def bits_of(token_id: int | None, vocabulary: int) -> NDArray[np.uint32]:
    """Only this token, as guides tell it; None is none at all."""
    mask = np.zeros(-(-vocabulary // 32) * 32, np.bool_)
    if token_id is not None:
        mask[token_id] = True
    return np.packbits(mask, bitorder="little").view("<u4")


class Clock(Protocol):
    now_ns: int


@dataclass
class Pace:
    """Whether guides know what may come next, and how often somebody has waited for that, on which clock."""

    is_ready: bool = True
    waits: int = 0
    clock: Clock | None = None


class FakeGuide:
    """What it was once seen to know it knows until it is told the next token."""

    def __init__(self, answer: list[int], pace: Pace, taken: int = 0) -> None:
        self._answer = answer
        self._pace = pace
        self._taken = taken
        self._knows = False

    @property
    def is_ready(self) -> bool:
        self._knows = self._knows or self._pace.is_ready
        return self._knows

    @property
    def may_end(self) -> bool:
        return self._taken == len(self._answer)

    def wait(self, limit_s: float) -> None:
        self._pace.waits += 1
        if self._pace.clock is not None:
            self._pace.clock.now_ns += round(limit_s * 1e9)

    def next_token(self) -> int | None:
        return self._answer[self._taken] if self._taken < len(self._answer) else None

    def advance(self, token_id: int) -> None:
        assert token_id == self.next_token(), "the answer left its guide"
        self._taken += 1
        self._knows = False

    def bits(self, end_id: int | None) -> NDArray[np.uint32]:
        raise NotImplementedError

    def fork(self) -> FakeGuide:
        return FakeGuide(self._answer, self._pace, self._taken)


class FakeCompiler:
    def __init__(self) -> None:
        self.asked: list[tuple[Guide, Future[FakeGuide]]] = []
        self.pace = Pace()

    def compile(self, guide: Guide, owner: str, tenant: str = "") -> Future[FakeGuide]:
        future: Future[FakeGuide] = Future()
        self.asked.append((guide, future))
        return future

    def follow(self) -> None:
        """They know at once where their words lead, or when the pace says so."""

    def finish(self) -> None:
        for guide, future in self.asked:
            if future.set_running_or_notify_cancel():
                answer = [int(token_id) for token_id in guide.text.split()]
                future.set_result(FakeGuide(answer, self.pace))
        self.asked.clear()

    def refuse(self, error: InflightError) -> None:
        for _, future in self.asked:
            future.set_exception(error)
        self.asked.clear()
