"""Collects what streams have produced until the sender comes round to them.

There is no timer and no knob. The sender takes the stream that has been silent longest, with everything it
has produced since its last response; first tokens go before all others. So no stream is silent for a round
of the sender on top of a step of the engine, as those would be whose first tokens went ahead. While sending
keeps up, each token leaves on its own; when it does not, responses grow by just as much as the path behind
them is slow, and no throughput is lost. An answer that is wanted whole is collected in the same way, and
waits for its turn only once it is complete.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from python_backend.engine.report import FinishReason, PerfMetrics, SequenceEvent

StreamKey = tuple[int, int]  # a row's key in the engine, and which of its sequences


@dataclass(slots=True)
class Pending:
    """What one sequence has produced since its last response."""

    key: int
    sequence_index: int = 0
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    context_logits: list[bytes] = field(default_factory=list)
    generation_logits: list[bytes] = field(default_factory=list)
    top_log_probs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    perf: PerfMetrics | None = None
    steps: list[list[int]] | None = None
    context: bytes | None = None
    oldest_ns: int = 0  # when the first and the last of the tokens came
    newest_ns: int = 0

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def add(self, event: SequenceEvent, now_ns: int) -> None:
        self.finish_reason = event.finish_reason
        self.error = event.error
        self.perf = event.perf or self.perf
        self.steps = event.steps
        self.context = event.context
        if event.context_logits is not None:
            self.context_logits.append(event.context_logits)
        if event.top_log_probs is not None:
            self.top_log_probs += event.top_log_probs
        if not event.token_ids:
            return
        self.token_ids += event.token_ids
        self.log_probs += event.log_probs or ()
        if event.generation_logits is not None:
            self.generation_logits.append(event.generation_logits)
        self.oldest_ns = self.oldest_ns or now_ns
        self.newest_ns = now_ns


class Coalescer:
    def __init__(self) -> None:
        self._collected: dict[StreamKey, Pending] = {}
        self._order: list[tuple[int, StreamKey]] = []  # a heap, by when each was heard last
        self._firsts: deque[StreamKey] = deque()
        self._heard: dict[StreamKey, int] = {}
        self._moment = 0

    def __len__(self) -> int:
        """How many streams wait for the sender."""
        return len(self._order) + len(self._firsts)

    def put(self, event: SequenceEvent, now_ns: int = 0, whole: bool = False, is_first: bool = False) -> None:
        """`whole`: the caller wants the answer in one piece; `is_first`: it has had nothing yet."""
        stream = (event.key, event.sequence_index)
        pending = self._collected.get(stream)
        is_new = pending is None
        if pending is None:
            pending = self._collected[stream] = Pending(*stream)
        pending.add(event, now_ns)
        if event.is_last if whole else is_new:
            if is_first:
                self._firsts.append(stream)
            else:
                heappush(self._order, (self._heard.get(stream) or self._next_moment(), stream))

    def take(self) -> Pending | None:
        """The stream that has been silent longest, with all it has; None when nobody waits."""
        while self:
            stream = self._firsts.popleft() if self._firsts else heappop(self._order)[1]
            if pending := self._collected.pop(stream, None):
                if pending.is_last:
                    self._heard.pop(stream, None)
                else:
                    self._heard[stream] = self._next_moment()
                return pending
        return None

    def drop(self, key: int, sequences: int) -> None:
        """Forgets what a row has produced: nobody wants it any more."""
        for index in range(sequences):
            self._collected.pop((key, index), None)
            self._heard.pop((key, index), None)

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment
