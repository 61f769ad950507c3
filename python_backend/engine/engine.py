"""The step loop's body: schedule, execute, commit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Row
from dataclasses import dataclass, fields
from typing import Protocol

from python_backend.engine.blocks import BlockPool
from python_backend.engine.refusals import refuse_impossible
from python_backend.engine.scheduling.admission import admission_rule
from python_backend.engine.scheduling.plan import Chunk, StepPlan
from python_backend.engine.scheduling.scheduler import Scheduler
from python_backend.engine.sequence import FinishReason, GenerationRequest, Sequence
from python_backend.wire.errors import ErrorKind, InflightError

NOT_A_NUMBER = InflightError(
    ErrorKind.ENGINE_FAILED, "the model's scores for the next token are not numbers"
).to_text()


@dataclass(frozen=True)
class EngineConfig:
    """Everything that shapes an engine; None means "what the model and the machine suggest"."""

    checkpoint_dir: str
    max_tokens_in_kv_cache: int | None = None
    tokens_per_block: int = 16
    max_batch_size: int = 64
    max_step_tokens: int = 512
    max_sequence_tokens: int | None = None
    static_batching: bool = False
    check_blocks: bool = False
    guaranteed_no_evict: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 1:
                raise ValueError(f"{field.name} is {value}; it must be at least 1")


class Executor(Protocol):
    """What runs the model: the keys and values of computed tokens are its own business."""

    def execute(self, chunks: Row[Chunk]) -> list[int | None]:
        """Computes the chunks in one forward pass.

        Returns the next token of each chunk that yields one, in the order of the chunks; None stands for a
        sequence whose scores were not numbers.
        """


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the model allows: ids below `vocabulary`, and sequences up to `max_sequence_tokens` long."""

    vocabulary: int
    max_sequence_tokens: int


@dataclass(slots=True)
class SequenceOutput:
    """What one step gave one sequence; with `finish_reason` set it is the sequence's last."""

    key: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine after its latest step."""

    step_count: int
    active: int
    running: int
    scheduled: int
    context: int
    context_tokens: int
    waiting: int
    paused: int
    preemption_count: int
    free_blocks: int
    used_blocks: int
    total_blocks: int


class Engine:
    """Sequences come in by `add`, end exactly once in the outputs of `step`, and may be cancelled between."""

    def __init__(
        self, config: EngineConfig, limits: EngineLimits, pool: BlockPool, executor: Executor
    ) -> None:
        if limits.max_sequence_tokens > pool.capacity_tokens:
            raise ValueError(
                f"a sequence of {limits.max_sequence_tokens} tokens would never fit into a pool of "
                f"{pool.capacity_tokens}"
            )
        self.limits = limits
        self.pool = pool
        self._checks_blocks = config.check_blocks
        self._executor = executor
        self._scheduler = Scheduler(
            pool,
            admission_rule(config.guaranteed_no_evict, config.static_batching),
            config.max_batch_size,
            config.max_step_tokens,
        )
        self._sequences: dict[int, Sequence] = {}
        self._cancelled: list[Sequence] = []
        # Kept across a step that raises, so that what ended before it is still told.
        self._outputs: list[SequenceOutput] = []
        self._arrivals = itertools.count()
        self._latest_plan = StepPlan()
        self._step_count = 0
        self._preemption_count = 0

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, key: int, request: GenerationRequest) -> None:
        """Takes a request in; raises InflightError if it could never run."""
        if key in self._sequences:
            raise ValueError(f"key {key} is already in use")
        refuse_impossible(request, self.limits.vocabulary, self.limits.max_sequence_tokens)
        room_tokens = self.limits.max_sequence_tokens - len(request.prompt_ids)
        sequence = Sequence(
            key, next(self._arrivals), request, max_new_tokens=min(request.max_new_tokens, room_tokens)
        )
        self._sequences[key] = sequence
        self._scheduler.add(sequence)

    def cancel(self, key: int) -> None:
        """Ends the sequence at the next step; a key that is not (or no longer) here is not an error."""
        sequence = self._sequences.get(key)
        if sequence is not None and not sequence.is_cancelled:
            sequence.is_cancelled = True
            self._cancelled.append(sequence)

    def step(self) -> list[SequenceOutput]:
        self._end_cancelled()
        plan = self._scheduler.schedule()
        next_tokens = self._executor.execute(plan.chunks) if plan.chunks else []
        self._commit(plan, next_tokens)
        if self._checks_blocks:
            self.pool.check()
        return self._take_outputs()

    def abort(self, reason: str) -> list[SequenceOutput]:
        """Ends every sequence with an error, after a step that raised; the engine can go on, empty."""
        for sequence in self._sequences.values():
            self._end(sequence, FinishReason.ERROR, reason)
        self._leave(list(self._sequences.values()))
        return self._take_outputs()

    @property
    def stats(self) -> EngineStats:
        plan = self._latest_plan
        context = [chunk.count for chunk in plan.chunks if chunk.is_context]
        return EngineStats(
            step_count=self._step_count,
            active=len(self._sequences),
            running=len(self._scheduler.running),
            scheduled=len(plan.chunks),
            context=len(context),
            context_tokens=sum(context),
            waiting=len(self._scheduler.waiting),
            paused=len(plan.preempted),
            preemption_count=self._preemption_count,
            free_blocks=self.pool.free_blocks,
            used_blocks=self.pool.used_blocks,
            total_blocks=self.pool.total_blocks,
        )

    def _end_cancelled(self) -> None:
        cancelled = [sequence for sequence in self._cancelled if sequence.finish_reason is None]
        self._cancelled.clear()
        for sequence in cancelled:
            self._end(sequence, FinishReason.CANCELLED)
        self._leave(cancelled)

    def _commit(self, plan: StepPlan, next_tokens: list[int | None]) -> None:
        """Counts what was computed, hands out what was found, and lets those leave that ended by it."""
        found = iter(next_tokens)
        ended = []
        for chunk in plan.chunks:
            sequence = chunk.sequence
            yields_token = chunk.yields_token
            sequence.computed_tokens = chunk.end
            if yields_token:
                self._hand_out(sequence, next(found))
                if sequence.finish_reason:
                    ended.append(sequence)
        self._leave(ended)
        self._latest_plan = plan
        self._step_count += 1
        self._preemption_count += len(plan.preempted)

    def _hand_out(self, sequence: Sequence, token_id: int | None) -> None:
        if token_id is None:
            self._end(sequence, FinishReason.ERROR, NOT_A_NUMBER)
        else:
            token_ids = sequence.accept(token_id)
            self._outputs.append(SequenceOutput(sequence.key, token_ids, sequence.finish_reason))

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        sequence.finish_reason = reason
        self._outputs.append(SequenceOutput(sequence.key, [], reason, error))

    def _leave(self, ended: list[Sequence]) -> None:
        self._scheduler.remove(ended)
        for sequence in ended:
            del self._sequences[sequence.key]

    def _take_outputs(self) -> list[SequenceOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs
