"""An answer whose prompt may be computed by another replica first, which is there for prompts."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import InflightError
from python_backend.wire.pools import DECODE, Part
from router.routing.generation import FleetGeneration
from router.triton.client import TritonGeneration
from router.triton.failures import TritonError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.generation import Delta, GenerationCall
    from router.routing.generation import FleetPipeline
    from router.routing.replicas import Replica


# What it would tell of an answer is not asked of who computes the prompt.
_PROMPT_ALONE: dict[str, Any] = {
    "part": Part.CONTEXT.value,
    "max_tokens": 1,
    "guide": None,
    "echo": False,
    "returns_token_ids": None,
    "top_log_probs": None,
}


class Prompt:
    """What the prompt counts for the replica that computes it."""

    def __init__(self, replica: Replica, attempt: TritonGeneration, began_s: float) -> None:
        self.replica = replica
        self.attempt = attempt
        self.began_s = began_s
        self.outstanding_tokens = 0

    def give_up(self, reason: str) -> None:
        self.attempt.cut()


class DividedGeneration(FleetGeneration):
    """Each attempt may have its prompt computed before it begins; where that fails, whoever answers does it.

    What is told is the answer alone: the token that was chosen with the prompt is nobody's. Of the prompt no
    more was cached than who computed it first had found: what that computed for this very request is no gift,
    whoever answers. The moment at which it began is that one's, too.
    """

    __slots__ = ("_computed", "_found_tokens", "_prompt")

    def __init__(self, pipeline: FleetPipeline, call: GenerationCall, told: Sequence[Delta] = ()) -> None:
        super().__init__(pipeline, call, told)
        self._prompt: Prompt | None = None  # while it is under way
        self._computed: Delta | None = None  # for the attempt that is about to begin, or has
        self._found_tokens = pipeline.context_tokens  # in a cache, at most

    async def _begin(self) -> TritonGeneration | None:
        self._computed = None
        # What an engine died of may be the prompt: it is not taken to two for one attempt.
        if not self._stop_asked and not self._deaths and (prompt := self._open_prompt()) is not None:
            self._is_over = True  # should the reader leave
            self._computed = await self._read(prompt)
            self._is_over = False
            self._prompt = None
        self._tokens = self._expected + (self._prompt_tokens if self._computed is None else 0)
        return await super()._begin()

    def _open_prompt(self) -> Prompt | None:
        call, least_tokens = self._call, self._settings.apart_tokens
        if call.images or (call.echo and call.top_log_probs is not None):
            return None  # images are read where they are answered; of each of its tokens something is told
        replica = self._replicas.pick_for_prompt(self._opening(), least_tokens)
        if replica is None:
            return None
        request_id = f"{call.request_id}-p{self._attempts + 1}"
        call = msgspec.structs.replace(call, request_id=request_id, **_PROMPT_ALONE)
        pipeline, began_s = self._pipeline, time.monotonic()
        attempt = TritonGeneration(replica.connection, pipeline.engine, pipeline.requests.encode(call), call)
        prompt = self._prompt = Prompt(replica, attempt, began_s)
        attempt.on_end = partial(replica.ended, prompt)
        replica.began(prompt, self._prompt_tokens, began_s)
        if self._trace is not None:
            self._trace.attempted(replica.name, began_s, Part.CONTEXT.value)
        return prompt

    async def _read(self, prompt: Prompt) -> Delta | None:
        """What is told at its end; None where whoever answers has to compute it."""
        computed = None
        try:
            async for delta in prompt.attempt:
                computed = delta if delta.context else None
        except TritonError as error:
            self._note_failure(error.failure, prompt.replica, prompt.began_s)
            prompt.attempt.cut()
        except InflightError:
            pass  # it was told to stop, and did not in time
        else:
            prompt.replica.answered(time.monotonic(), prompt.began_s)
        if computed is not None:
            self._found_tokens = min(self._found_tokens, computed.cached_tokens)
        self._replicas.prompts_elsewhere += computed is not None
        self._replicas.prompts_lost += computed is None and not self._stop_asked
        return computed

    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        computed = self._computed if replica.pool == DECODE else None
        self._computed, self._asked = computed, self._call
        if computed is not None:
            more = {"part": Part.GENERATION.value, "context": computed.context}
            self._asked = msgspec.structs.replace(self._call, **more)
        return super()._open(replica, number)

    def _take(self, delta: Delta, replica: Replica) -> Delta | None:
        if delta.cached_tokens > self._found_tokens:
            delta = msgspec.structs.replace(delta, cached_tokens=self._found_tokens)
        computed = self._computed
        if delta.engine is not None and computed is not None and computed.engine is not None:
            arrival_s, scheduled_s = computed.engine.arrival_s, computed.engine.first_scheduled_s
            engine = replace(delta.engine, arrival_s=arrival_s, first_scheduled_s=scheduled_s)
            delta = msgspec.structs.replace(delta, engine=engine)
        return super()._take(delta, replica)

    def stop(self) -> None:
        super().stop()
        if self._prompt is not None:
            self._prompt.attempt.stop()
