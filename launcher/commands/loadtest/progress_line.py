"""Progress of a load test: one line, redrawn on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING

from client.screen_parts import Status
from loadtest.percentiles import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from rich.console import Console

    from loadtest.results import RequestResult

WINDOW_S = 10.0
_LINE_INTERVAL_S = 10.0


class Pulse:
    """The last seconds of a run; what has failed or was refused counts from the beginning."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, RequestResult]] = deque()
        self.refused = 0
        self.failed = 0

    def take(self, results: Iterable[RequestResult]) -> None:
        for result in results:
            self.refused += result.is_refused
            self.failed += result.has_failed
            self._recent.append((result.at_s + (result.ended_s or 0.0), result))

    def line(self, at_s: float, users: int) -> str:
        while self._recent and self._recent[0][0] < at_s - WINDOW_S:
            self._recent.popleft()
        seen = [result for _, result in self._recent]
        window_s = max(1.0, min(WINDOW_S, at_s))
        firsts = sorted(each.first_token_s for each in seen if each.first_token_s is not None)
        tokens = sum(each.completion_tokens for each in seen)
        first = f"{1000 * percentile(firsts, 0.95):.0f} ms" if firsts else "-"
        parts = [
            f"{at_s:5.0f} s",
            f"{users} users",
            f"{len(seen) / window_s:.1f} requests/s",
            f"first token p95 {first}",
            f"{tokens / window_s:.0f} tokens/s",
            *([f"{self.refused} refused"] if self.refused else []),
            *([f"{self.failed} failed"] if self.failed else []),
        ]
        return " · ".join(parts)


class ProgressLine:
    """Prints a pulse's lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("waiting for the first request", console) if console.is_terminal else None
        self._printed_s = -_LINE_INTERVAL_S

    def shown(self) -> AbstractContextManager[object]:
        return self._status or nullcontext()

    def show(self, line: str) -> None:
        if self._status is not None:
            self._status.show(line)
        elif time.monotonic() - self._printed_s >= _LINE_INTERVAL_S:
            self._printed_s = time.monotonic()
            self._console.print(line, highlight=False)
