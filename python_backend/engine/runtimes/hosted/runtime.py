"""A package that schedules and computes by itself, as a `Runtime`: the contract is kept here.

As many sequences as may run are given to it, the others wait here in the order of their tiers. `step` waits a
moment for what it tells, so that commands are heard in between.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from python_backend.engine.host.memory import resident_bytes
from python_backend.engine.refusals import refuse_impossible, within_vocabulary
from python_backend.engine.report import EngineBroken, FinishReason, Gauges, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.hosted.conversation import Conversation, Told
from python_backend.engine.runtimes.hosted.events import missing_logits, take_news
from python_backend.engine.runtimes.hosted.host import Asked, Translator, Unreadable
from python_backend.engine.runtimes.hosted.merge import merged
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.events import end_event
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier

_log = logging.getLogger("inflight.engine")

# How long a step waits for news: so long a command may have to wait.
_PATIENCE_S = 0.002
# What it tells of its iterations comes later than its tokens; so long after the last the gauges follow.
_SETTLING_S = 0.3
_LOST_S = 10.0


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the model is, and what was asked of the package; `guide_end_id` ends an answer with a guide."""

    vocabulary: int
    max_sequence_tokens: int
    max_batch_size: int
    max_step_tokens: int
    total_blocks: int
    tokens_per_block: int
    guide_end_id: int | None = None
    max_images: int = 0
    image_tokens: int = 0


class HostedRuntime:
    """Requests come in by `add`, each of their sequences ends exactly once in the events of `step`."""

    def __init__(self, conversation: Conversation, translator: Translator, facts: HostFacts) -> None:
        self._conversation = conversation
        self._translator = translator
        self._facts = facts
        self._max_batch_size = facts.max_batch_size
        self._arrivals = itertools.count()
        self._sequences: dict[int, list[Sequence]] = {}
        self._waiting: list[tuple[tuple[int, int, int], Sequence]] = []  # a heap
        self._running: dict[int, tuple[Sequence, Asked]] = {}  # by the id of what was asked
        self._aborted: dict[int, tuple[Sequence, Asked, float]] = {}  # when, and not over yet
        self._unwanted: set[str] = set()  # adapters that somebody still has
        self._settled_s = 0.0
        # Kept across a step that raises, so that what ended before it is still told.
        self._events: list[SequenceEvent] = []

    def describe(self) -> Ready:
        facts = self._facts
        return Ready(
            max_sequence_tokens=facts.max_sequence_tokens,
            total_blocks=facts.total_blocks,
            tokens_per_block=facts.tokens_per_block,
            max_batch_size=facts.max_batch_size,
            max_step_tokens=facts.max_step_tokens,
            max_images=facts.max_images,
            image_tokens=facts.image_tokens,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._events or self._aborted) or self._is_settling

    @property
    def _is_settling(self) -> bool:
        return time.monotonic() < self._settled_s

    @property
    def can_step(self) -> bool:
        return self.has_work

    @property
    def spare_s(self) -> float:
        return 0.0

    def add(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        if key in self._sequences:
            raise ValueError(f"key {key} is already in use")
        facts = self._facts
        request = within_vocabulary(request, facts.vocabulary)
        limits = (facts.vocabulary, facts.max_sequence_tokens, facts.max_batch_size, facts.max_images)
        refuse_impossible(request, *limits)
        self._translator.refuse(request)
        if request.guide is not None and (request.end_id is None or request.end_id < 0):
            # A guide's answer ends with a token of its own there; our own engine needs none.
            request = replace(request, end_id=facts.guide_end_id)
        room = facts.max_sequence_tokens - len(request.prompt_ids)
        arrival, most = next(self._arrivals), min(request.max_new_tokens, room)
        sequences = [
            Sequence(key, arrival, request, most, index=index, arrival_ns=arrival_ns)
            for index in range(request.num_return_sequences)
        ]
        self._sequences[key] = sequences
        for sequence in sequences:
            heapq.heappush(self._waiting, (sequence.rank, sequence))

    def cancel(self, key: int) -> None:
        for sequence in list(self._sequences.get(key, ())):
            sequence.is_cancelled = True
            self._end(sequence, FinishReason.CANCELLED)

    def configure(
        self,
        max_step_tokens: int | None,
        max_batch_size: int | None,
        inter_token_ms: Mapping[Tier, float | None] | None,
    ) -> None:
        """How many run is decided here; how many tokens an iteration has was decided when it was loaded."""
        if max_batch_size is not None:
            if not 1 <= max_batch_size <= self._facts.max_batch_size:
                raise InflightError(
                    ErrorKind.INVALID_REQUEST,
                    f"max_batch_size is {max_batch_size}; allowed: 1 to {self._facts.max_batch_size}",
                )
            self._max_batch_size = max_batch_size
        if max_step_tokens not in (None, self._facts.max_step_tokens):
            _log.info(
                "max_step_tokens stays %d until %s is reloaded",
                self._facts.max_step_tokens,
                self._translator.title,
            )

    def drop_adapter(self, name: str) -> None:
        self._unwanted.add(name)
        self._drop_unwanted()

    def step(self) -> list[SequenceEvent]:
        if self._conversation.failure is not None:
            raise EngineBroken(self._conversation.failure)
        self._forget_lost()
        self._start_waiting()
        for told in self._conversation.hear(0 if self._events else _PATIENCE_S):
            self._settled_s = time.monotonic() + _SETTLING_S
            self._take(told)
        self._start_waiting()
        self._drop_unwanted()
        return self._take_events()

    def abort(self, reason: str) -> list[SequenceEvent]:
        for sequence in list(itertools.chain(*self._sequences.values())):
            self._end(sequence, FinishReason.ERROR, reason)
        return self._take_events()

    def gauges(self) -> Gauges:
        now, running = self._conversation.iterations, len(self._running)
        return Gauges(
            step_count=now.count,
            active=sum(map(len, self._sequences.values())),
            scheduled=running and min(now.scheduled or running, running),
            context=now.context if running else 0,
            waiting=len(self._waiting),
            paused=now.paused if running else 0,
            used_blocks=self._used_blocks,
            total_blocks=now.total_blocks or self._facts.total_blocks,
            context_tokens=now.context_tokens if running else 0,
            reused_blocks=now.reused_blocks,
            max_batch_size=self._max_batch_size,
            max_step_tokens=self._facts.max_step_tokens,
            memory_bytes=now.cpu_bytes or resident_bytes(),
            new_blocks=now.new_blocks,
            gpu_memory_bytes=now.gpu_bytes,
            pinned_memory_bytes=now.pinned_bytes,
            busy_ns=now.busy_ns,
            cached_blocks=now.cached_blocks,
            preemptions=now.preemptions,
            learned=now.learned,
        )

    @property
    def _used_blocks(self) -> int:
        """What it told last may be older than who runs now, each of whom holds one at least."""
        held = len(self._running) + len(self._aborted) + self._is_settling
        return max(held, self._conversation.iterations.used_blocks) if held else 0

    def _drop_unwanted(self) -> None:
        """The package would read its files again for whoever still has one, and break where they are gone."""
        if not self._unwanted:
            return
        ended = (sequence for sequence, _, _ in self._aborted.values())
        held = {each.request.adapter for each in itertools.chain(*self._sequences.values(), ended)}
        for name in sorted(self._unwanted - held):
            self._unwanted.remove(name)
            self._conversation.drop_adapter(name)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) + len(self._aborted) < self._max_batch_size:
            _, sequence = heapq.heappop(self._waiting)
            if sequence.finish_reason is not None:
                continue  # cancelled while it waited
            sequence.first_scheduled_ns = time.monotonic_ns()
            try:
                arguments = self._translator.arguments(sequence)
            except Exception as error:  # its values say no before it is asked
                self._fail(sequence, error if isinstance(error, ValueError) else Unreadable(str(error)))
                continue
            asked = self._conversation.ask(arguments)
            self._running[id(asked)] = sequence, asked

    def _take(self, told: Told) -> None:
        """What is told of a sequence that ended here meanwhile is passed over."""
        if told.news.is_last:
            self._aborted.pop(id(told.asked), None)
        if id(told.asked) not in self._running:
            return
        sequence, _ = self._running[id(told.asked)]
        if told.news.is_last:
            del self._running[id(told.asked)]  # there is nothing left to abort
        if told.error is not None:
            self._fail(sequence, told.error)
            return
        missing = missing_logits(sequence, told.news, self._translator.title)
        if missing is not None:
            self._end(sequence, FinishReason.ERROR, missing.to_text())
            return
        try:
            event = take_news(sequence, told.news, time.monotonic_ns(), self._translator.title)
        except Exception as error:
            _log.exception("the result of sequence %d could not be processed", sequence.key)
            sequence.finish_reason = None
            self._fail(sequence, Unreadable(str(error)))
            return
        if event is not None:
            self._events.append(event)
        if sequence.finish_reason is not None:
            self._leave(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """An error of its own request ends a sequence; any other, the package."""
        failure = self._translator.failure_of(error)
        if failure is None:
            raise EngineBroken(f"{self._translator.title} failed: {type(error).__name__}: {error}") from error
        self._end(sequence, FinishReason.ERROR, failure.to_text())

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """An end that does not come from there."""
        if sequence.finish_reason is not None:
            return
        sequence.finish_reason = reason
        self._events.append(end_event(sequence, error))
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """What is still computed for it is aborted, and keeps its slot until that is confirmed."""
        others = [each for each in self._sequences[sequence.key] if each is not sequence]
        if others:
            self._sequences[sequence.key] = others
        else:
            del self._sequences[sequence.key]
        left = [number for number, (each, _) in self._running.items() if each is sequence]
        self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
        heapq.heapify(self._waiting)
        for number in left:
            _, asked = self._running.pop(number)
            self._conversation.abort(asked)
            self._aborted[number] = sequence, asked, time.monotonic()

    def _forget_lost(self) -> None:
        """An abort that is never confirmed must not hold a slot for ever."""
        now_s = time.monotonic()
        for number in [number for number, (_, _, at_s) in self._aborted.items() if now_s - at_s > _LOST_S]:
            del self._aborted[number]
            _log.warning("%s did not confirm an abort within %.0f s", self._translator.title, _LOST_S)

    def _take_events(self) -> list[SequenceEvent]:
        events, self._events = self._events, []
        return merged(events)
