"""A language model on several servers: a request outlives the replica that it was sent to."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from functools import partial
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.engine_report import ADAPTER, ROUTER
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, Failure, GenerationCall, byte_tokens
from router.core.images import Vision
from router.routing.replay import (
    MAX_DEATHS,
    DifferentAnswer,
    Poisons,
    Replay,
    is_releases_fault,
    is_replicas_fault,
    may_go_on,
)
from router.routing.replica_choice import (
    EXPECTED_TOKENS,
    LEAST_TOKENS,
    OPENING_CHARS,
    Opening,
    answer_tokens,
    opening_of,
)
from router.routing.replicas import Failed, FleetSettings, Replica, ReplicaSet, to_avoid
from router.triton.client import RelayedGeneration, TritonGeneration
from router.triton.failures import UNAVAILABLE, TritonError
from router.triton.messages import THIS_ROUTER, GenerateRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.core.trace import Trace
    from router.routing.shared_prefixes import SharedPrefixes

    NewGeneration = Callable[["FleetPipeline", GenerationCall, Sequence[Delta]], "FleetGeneration"]

log = logging.getLogger(__name__)
_POISON = "two engine processes crashed while computing this request: it is refused for a minute"
# Of an answer, before they are made one: each by itself takes ten times its size.
_MOST_PIECES = 64


class Attempts(ABC):
    """At most one attempt is in flight.

    It counts for its replica from its begin until Triton is done with it, whoever reads and however it ends.
    One that its replica failed is followed by another elsewhere, or on the same replica when it is back,
    under an id of its own.
    """

    _can_replay = False  # whether one of which something was told can begin again
    __slots__ = (
        "_attempt",
        "_attempts",
        "_began_s",
        "_deaths",
        "_failed",
        "_given_up",
        "_has_told",
        "_heard",
        "_is_over",
        "_replica",
        "_replicas",
        "_settings",
        "_stop_asked",
        "_tokens",
        "_trace",
        "_unsent",
        "lost_attempts",
        "outstanding_tokens",
    )

    def __init__(
        self, replicas: ReplicaSet, settings: FleetSettings, tokens: int, trace: Trace | None = None
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._trace = trace
        self._tokens = tokens  # what it counts for until it is heard of
        self.outstanding_tokens = 0
        self.lost_attempts = 0  # by faults of the release, whoever has saved the request
        self._deaths = 0  # of engines while they computed it
        self._attempt: TritonGeneration | None = None
        self._attempts = 0
        self._unsent = 0  # of these: nobody has seen them
        self._replica: Replica | None = None  # of the last attempt
        self._failed: Failed = ()
        self._began_s = 0.0
        self._heard = False  # of the attempt that is under way
        self._given_up: asyncio.Future[None] | None = None  # there while it waits for a replica
        self._has_told = False  # something of it is in the reader's hands
        self._stop_asked = False
        self._is_over = False

    @abstractmethod
    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        """The attempt of this number; the first is 1."""

    @abstractmethod
    def _opening(self) -> Opening | None:
        """What the choice of a replica goes by, where there is one."""

    @abstractmethod
    def _take(self, item: Any, replica: Replica) -> Any:
        """What of it is news to the reader, or None."""

    @abstractmethod
    def _stopped(self) -> Any:
        """The end of one that was stopped while nothing was under way."""

    def _wanted_by_s(self) -> float:
        """Until when it is worth waiting for a replica at most."""
        return inf

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        while True:
            attempt = self._attempt or await self._begin()
            if attempt is None:
                return self._stopped()
            try:
                while (item := attempt.take()) is None:
                    await attempt.more()
            except TritonError as error:
                if not self._survives(error):
                    raise
                continue
            except asyncio.CancelledError:
                attempt.abandon()
                raise
            replica = self._replica
            assert replica is not None
            if self._heard:
                replica.last_progress_s = time.monotonic()
            else:
                self._heard = True
                replica.answered(time.monotonic(), self._began_s)
            item = self._take(item, replica)
            if item is not None:
                self._has_told = True
                return item

    async def _begin(self) -> TritonGeneration | None:
        """None where it was stopped before."""
        replicas = self._replicas
        replica = None
        if not self._stop_asked:
            opening = None if replicas.only is not None else self._opening()
            exclude = to_avoid(self._failed) if self._failed else ()
            replica = replicas.pick(opening, exclude) or await self._wait(opening, exclude)
        if replica is None:
            self._is_over = True
            if self._stop_asked:
                return None
            raise InflightError(ErrorKind.ENGINE_FAILED, UNAVAILABLE)
        self._attempts += 1
        if self._attempts == 1:
            if replicas.budget.left < replicas.budget.reserve:
                replicas.budget.requested()
        elif self._has_told:
            replicas.replays += 1
        else:
            replicas.retries += 1
        self._replica = replica
        self._began_s = time.monotonic()
        self._heard = False
        if self._trace is not None:
            self._trace.attempted(replica.name, self._began_s)
        attempt = self._attempt = self._open(replica, self._attempts)
        attempt.on_end = partial(replica.ended, self)
        replica.began(self, self._tokens, self._began_s)
        return attempt

    async def _wait(self, opening: Opening | None, exclude: tuple[Replica, ...]) -> Replica | None:
        self._given_up = asyncio.get_running_loop().create_future()
        self._is_over = True  # should the reader leave
        wait_s = self._settings.revive_wait_s
        replica = await self._replicas.find(opening, exclude, wait_s, self._given_up, self._wanted_by_s())
        self._given_up = None
        self._is_over = False
        return None if self._stop_asked else replica

    def _note_failure(self, failure: Failure, replica: Replica, began_s: float) -> None:
        replica.failed(failure, time.monotonic(), began_s)
        if is_releases_fault(failure, replica.health.is_reviving):
            self.lost_attempts += 1
        if self._trace is not None:
            self._trace.failed(began_s, failure.name.lower())
        self._deaths += failure is Failure.ENGINE_DIED

    def _survives(self, error: TritonError) -> bool:
        """Whether there is to be another attempt, or an end that a stop asked for."""
        assert self._replica is not None
        self._note_failure(error.failure, self._replica, self._began_s)
        if self._stop_asked:
            goes_on = is_replicas_fault(error.failure)
        else:
            self._unsent += not error.sent
            goes_on = may_go_on(error.failure, self._attempts - self._unsent, self._deaths) and (
                self._can_replay if self._has_told else not error.sent or self._replicas.budget.take()
            )
        if error.failure is not Failure.CUT:
            self._failed += ((self._replica, self._began_s),)
        if goes_on and self._attempt is not None:
            self._attempt.cut()
            self._attempt = None
        return goes_on

    def stop(self) -> None:
        if not self._stop_asked:
            self._stop_asked = True
            if self._attempt is not None:
                self._attempt.stop()
            elif self._given_up is not None and not self._given_up.done():
                self._given_up.set_result(None)

    def give_up(self, reason: str) -> None:
        if self._attempt is not None:
            self._attempt.cut()


class FleetPipeline:
    """One release that generates text, wherever it is loaded."""

    def __init__(
        self,
        replicas: ReplicaSet,
        context_tokens: int,
        settings: FleetSettings,
        shared_prefixes: SharedPrefixes | None = None,
        generation: NewGeneration | None = None,
        divided: NewGeneration | None = None,
    ) -> None:
        self.replicas = replicas
        self._generation = generation or FleetGeneration
        self._divided = divided or self._generation  # for where prompts are computed apart
        self._shared_prefixes = shared_prefixes or None  # none are named, as a rule
        self.context_tokens = context_tokens
        self.expected_tokens = answer_tokens(context_tokens, context_tokens)
        self.settings = settings
        self.engine = replicas.manifest.engine
        self.requests = GenerateRequests(replicas.manifest.entry, replicas.manifest.adapter)

    @property
    def vision(self) -> Vision | None:
        reports = (each.report for each in self.replicas.replicas)
        seeing = (each for each in reports if each is not None and each.max_images)
        return next((Vision(each.max_images, each.image_tokens) for each in seeing), None)

    def generate(self, call: GenerationCall, told: Sequence[Delta] = ()) -> FleetGeneration:
        if self._shared_prefixes is not None:
            shared = self._shared_prefixes.of(call.prompt, call.add_special_tokens)
            call = msgspec.structs.replace(call, shared_prefix=shared)
        if self.replicas.poisons is not None and self.replicas.poisons.has(digest(call), time.monotonic()):
            raise InflightError(ErrorKind.INTERNAL, _POISON)
        if self.replicas.only is None and self.replicas.is_divided:
            return self._divided(self, call, told)
        return self._generation(self, call, told)

    def relay(self, request: Any, trace: Trace | None = None) -> FleetRelay:
        """For a request that somebody else built; the model that it names is filled in."""
        request.model_name = self.replicas.manifest.entry
        request.parameters[ROUTER].string_param = THIS_ROUTER
        if adapter := self.replicas.manifest.adapter:
            request.parameters[ADAPTER].string_param = adapter
        return FleetRelay(self.replicas, self.settings, request, self.engine, trace)

    async def ready(self) -> bool:
        return await self.replicas.ready()


def digest(call: GenerationCall) -> bytes:
    """What one tenant asks, whoever makes the request."""
    prompt = call.prompt if call.prompt_ids is None else call.prompt_ids
    asked = (call.tenant, prompt, *(image.sha256 for image in call.images or ()))
    return blake2b(repr(asked).encode("utf-8", "replace"), digest_size=16).digest()


class FleetGeneration(Attempts):
    """One answer, without a break for who reads it.

    An attempt that comes after the first token generates everything again, with the same seed. As much as was
    delivered is passed over, and must be the same: what a client gets is always one answer, never two halves.
    """

    _can_replay = True
    __slots__ = (
        "_asked",
        "_call",
        "_expected",
        "_generated",
        "_is_broken",
        "_pieces",
        "_pipeline",
        "_prompt_tokens",
        "_replay",
        "_told_logged",
        "_told_tokens",
    )

    def __init__(self, pipeline: FleetPipeline, call: GenerationCall, told: Sequence[Delta] = ()) -> None:
        expected = pipeline.expected_tokens
        if call.max_tokens < expected:
            expected = max(call.max_tokens, LEAST_TOKENS)
        self._prompt_tokens = min(call.most_prompt_tokens, pipeline.context_tokens)
        tokens = expected + self._prompt_tokens
        super().__init__(pipeline.replicas, pipeline.settings, tokens, call.trace)
        self._pipeline = pipeline
        self._call = self._asked = call  # what is asked of a replica may say more
        self._expected = expected
        self._generated = 0  # by the attempt that is under way
        self._pieces: list[str] = []  # of the text that was told
        self._told_tokens = self._told_logged = 0
        for delta in told:
            self._pieces.append(delta.text)
            self._told_tokens += delta.completion_tokens
            self._told_logged += len(delta.tokens)
        self._has_told = bool(told)
        self._replay: Replay | None = None
        self._is_broken = False

    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        call = self._asked
        if number > 1:
            call = msgspec.structs.replace(call, request_id=f"{call.request_id}-r{number}")
            self._generated = 0
        if self._pieces:
            self._replay = Replay("".join(self._pieces), self._told_tokens, self._told_logged)
        pipeline = self._pipeline
        return TritonGeneration(replica.connection, pipeline.engine, pipeline.requests.encode(call), call)

    def _opening(self) -> Opening:
        call = self._call
        if call.prompt_ids is not None:
            text = opening_of(call.prompt_ids)
        else:
            text = call.prompt[:OPENING_CHARS].encode("utf-8", "replace")
        if call.images:
            text += call.images[0].sha256.encode()
        return Opening(text, self._prompt_tokens)

    def _take(self, delta: Delta, replica: Replica) -> Delta | None:
        self._generated += delta.completion_tokens
        if self.outstanding_tokens:  # so much is left of it; what has ended stays ended
            left = self._expected - self._generated
            left = left if left > LEAST_TOKENS else LEAST_TOKENS
            replica.outstanding_tokens += left - self.outstanding_tokens
            self.outstanding_tokens = left
        if self._is_broken:
            return None  # nobody wants it; only its end is waited for
        if self._replay is not None:
            news = self._passed_over(self._replay, delta)
            if news is None:
                return None
            delta = news
        pieces = self._pieces
        pieces.append(delta.text)
        if len(pieces) > _MOST_PIECES:
            pieces[:] = ["".join(pieces)]
        self._told_tokens += delta.completion_tokens
        self._told_logged += len(delta.tokens)
        return delta

    def _passed_over(self, replay: Replay, delta: Delta) -> Delta | None:
        try:
            news = replay.pass_over(delta)
        except DifferentAnswer as difference:
            log.error("%s: the regenerated answer differs: %s", self._call.request_id, difference)
            self._is_broken = True
            self.stop()
            raise InflightError(ErrorKind.ENGINE_FAILED, "the answer could not be continued") from None
        if replay.is_through:
            self._replay = None
        return news

    def _survives(self, error: TritonError) -> bool:
        goes_on = super()._survives(error)
        if self._deaths == MAX_DEATHS:
            log.error(
                "%s: a second engine process crashed while computing it: it is refused", self._call.request_id
            )
            self._replicas.poisons = self._replicas.poisons or Poisons()
            self._replicas.poisons.add(digest(self._call), time.monotonic())
        return goes_on

    def _wanted_by_s(self) -> float:
        return inf if self._has_told else self._call.deadline_s

    def _stopped(self) -> Delta:
        if self._is_broken:
            raise StopAsyncIteration
        return Delta("", finish="cancelled")


class FleetRelay(Attempts):
    """The responses to a request that somebody else built. Once there was one it is never sent again."""

    __slots__ = ("_engine", "_request", "_request_id")

    def __init__(
        self,
        replicas: ReplicaSet,
        settings: FleetSettings,
        request: Any,
        engine: str,
        trace: Trace | None = None,
    ) -> None:
        tokens = EXPECTED_TOKENS + byte_tokens(sum(map(len, request.raw_input_contents)))
        super().__init__(replicas, settings, tokens, trace)
        self._request = request
        self._request_id = request.id
        self._engine = engine

    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        if number > 1:
            self._request.id = f"{self._request_id}-r{number}"
        # Only the id matters here: the rest of what is asked for is in the request.
        call = GenerationCall(request_id=self._request.id, prompt="", max_tokens=0, seed=0)
        return self._generation(replica, self._request.SerializeToString(), call)

    def _generation(self, replica: Replica, request: bytes, call: GenerationCall) -> RelayedGeneration:
        return RelayedGeneration(replica.connection, self._engine, request, call)

    def _opening(self) -> Opening | None:
        raw = self._request.raw_input_contents
        return Opening(bytes(raw[0][:OPENING_CHARS]), byte_tokens(len(raw[0]))) if raw else None

    def _take(self, response: Any, replica: Replica) -> Any:
        replica.revalue(self, EXPECTED_TOKENS)
        return response

    def _stopped(self) -> Any:
        raise StopAsyncIteration
