"""An answer whose first token may be asked for at two replicas, where the first of them is late."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from router.routing.generation import FleetGeneration
from router.routing.hedged_attempt import HedgedAttempt
from router.triton.client import TritonGeneration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.generation import Delta, GenerationCall
    from router.routing.generation import FleetPipeline
    from router.routing.hedging import Hedges
    from router.routing.replicas import Replica
    from router.triton.failures import TritonError


class Rival:
    """What the second request counts for its replica."""

    def __init__(self, replica: Replica, began_s: float) -> None:
        self.replica = replica
        self.began_s = began_s
        self.outstanding_tokens = 0
        self.attempt: TritonGeneration | None = None

    def give_up(self, reason: str) -> None:
        if self.attempt is not None:
            self.attempt.cut()


class HedgedGeneration(FleetGeneration):
    """Only before anything was told, and only once."""

    __slots__ = ("_asked_s", "_hedges", "_rival")

    def __init__(
        self, pipeline: FleetPipeline, call: GenerationCall, told: Sequence[Delta] = (), *, hedges: Hedges
    ) -> None:
        super().__init__(pipeline, call, told)
        self._hedges = hedges
        self._asked_s = 0.0
        self._rival: Rival | None = None

    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        attempt = super()._open(replica, number)
        if number > 1 or self._has_told:
            return attempt
        self._asked_s = time.monotonic()
        self._hedges.requested()
        late_s = self._hedges.late_s(self._prompt_tokens)
        if late_s is None:
            return attempt
        hedged: Any = HedgedAttempt(attempt, late_s, self._open_rival, self._rival_won, self._rival_lost)
        return cast("TritonGeneration", hedged)

    def _open_rival(self) -> TritonGeneration | None:
        first = self._replica
        replica = self._replicas.pick(None, () if first is None else (first,))
        if replica is None or not replica.is_open or not self._hedges.take():
            return None
        call = msgspec.structs.replace(self._call, request_id=f"{self._call.request_id}-h")
        rival = self._rival = Rival(replica, time.monotonic())
        request = self._pipeline.requests.encode(call)
        rival.attempt = TritonGeneration(replica.connection, self._pipeline.engine, request, call)
        rival.attempt.on_end = partial(replica.ended, rival)
        replica.began(rival, self._tokens, rival.began_s)
        if self._trace is not None:
            self._trace.attempted(replica.name, rival.began_s)
        return rival.attempt

    def _rival_won(self, attempt: TritonGeneration) -> None:
        rival, first = self._rival, self._replica
        assert rival is not None
        assert first is not None
        first.ended(self)
        if attempt.on_end is not None:  # Triton is not done with it yet
            rival.replica.hand_over(rival, self)
            attempt.on_end = partial(rival.replica.ended, self)
        self._replica, self._began_s = rival.replica, rival.began_s

    def _rival_lost(self, error: TritonError) -> None:
        assert self._rival is not None
        self._rival.replica.failed(error.failure, time.monotonic(), self._rival.began_s)

    def _take(self, delta: Delta, replica: Replica) -> Delta | None:
        if not self._has_told and self._attempts == 1:
            self._hedges.heard(self._prompt_tokens, time.monotonic() - self._asked_s)
        return super()._take(delta, replica)
