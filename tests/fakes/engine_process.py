"""The engine process as its owner sees it: notes what it is told, and says what a test has it say."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

from python_backend.engine.process.messages import Progress, Report
from python_backend.engine.report import Gauges, LoadingProgress, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.wire.errors import ENGINE_AWAY, ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tiers import Tier

CAPACITY = Ready(
    max_sequence_tokens=4096, total_blocks=100, tokens_per_block=16, max_batch_size=8, max_step_tokens=512
)


class ScriptedEngine:
    def __init__(self, parameters: EngineParameters) -> None:
        self.submitted: dict[int, GenerationRequest] = {}
        self.arrivals_ns: list[int] = []
        self.cancelled: list[int] = []
        self.configured: list[tuple[int | None, int | None]] = []
        self.inter_token_ms: Mapping[Tier, float | None] | None = None
        self.is_dead = False
        self._reports: deque[Report] = deque()
        self._changed = threading.Condition()

    def wait_until_ready(self, progress: LoadingProgress) -> Ready:
        progress("loading weights", 1, 2)
        return CAPACITY

    def submit(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        self._refuse_if_dead()
        self.submitted[key] = request
        self.arrivals_ns.append(arrival_ns)

    def cancel(self, key: int) -> None:
        self._refuse_if_dead()
        self.cancelled.append(key)

    def configure(
        self,
        max_step_tokens: int | None = None,
        max_batch_size: int | None = None,
        inter_token_ms: Mapping[Tier, float | None] | None = None,
    ) -> None:
        self._refuse_if_dead()
        self.configured.append((max_step_tokens, max_batch_size))
        self.inter_token_ms = inter_token_ms

    def say(self, *events: SequenceEvent, gauges: Gauges | None = None) -> None:
        with self._changed:
            self._reports.append(Progress(list(events), gauges))
            self._changed.notify()

    def die(self) -> None:
        with self._changed:
            self.is_dead = True
            self._changed.notify()

    def has_report(self, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._reports or self.is_dead, timeout_s)
            if self.is_dead:
                raise EOFError
            return bool(self._reports)

    def receive(self) -> Report:
        return self._reports.popleft()

    def end_if_hung(self, owes_answers: bool) -> bool:
        return False

    def stop(self) -> None:
        pass

    def describe_end(self) -> str:
        return "killed by SIGKILL"

    @property
    def has_ended(self) -> bool:
        return self.is_dead

    def _refuse_if_dead(self) -> None:
        if self.is_dead:
            raise InflightError(ErrorKind.ENGINE_FAILED, ENGINE_AWAY)
