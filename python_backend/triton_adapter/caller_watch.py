"""Asks Triton which callers have gone: now and then, a few at a time, and not about young requests."""

from __future__ import annotations

from collections.abc import Iterable

from python_backend.triton_adapter.running_requests import RunningRequest

# A question whether one caller has gone costs a round trip to Triton; so many a period are asked at most.
_CHECKS_PER_PERIOD = 64
# Young requests are left alone: each question strains Triton, and short ones end by themselves.
_MIN_AGE_TO_ASK_S = 0.25


class CallerWatch:
    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next_check_s = 0.0
        self._cursor = 0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._next_check_s

    def who_has_gone(self, requests: Iterable[RunningRequest], now_s: float) -> list[RunningRequest]:
        self._next_check_s = now_s + self._period_s
        grown = [request for request in requests if now_s - request.since_s > _MIN_AGE_TO_ASK_S]
        gone = []
        for _ in range(min(len(grown), _CHECKS_PER_PERIOD)):
            self._cursor += 1
            request = grown[self._cursor % len(grown)]
            if request.is_caller_gone():
                gone.append(request)
        return gone
