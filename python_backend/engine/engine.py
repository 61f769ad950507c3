"""The step loop's body: schedule, launch, commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from python_backend.engine.adapters.shelf import AdapterShelf
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.guides.ports import GuideCompiler
from python_backend.engine.host.memory import resident_bytes
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.refusals import refuse_impossible, within_vocabulary
from python_backend.engine.report import FinishReason, Gauges, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.admission import admission_rule
from python_backend.engine.scheduling.budget import StepLimits
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.scheduling.scheduler import Scheduler
from python_backend.engine.sequence import Sequence, sequences_of
from python_backend.engine.steps.answers import Answers
from python_backend.engine.steps.control import StepControl
from python_backend.engine.steps.cost_memory import CostMemory
from python_backend.engine.steps.guide_waits import await_choices, await_guides, is_held_up
from python_backend.engine.steps.in_flight import StepsInFlight
from python_backend.engine.steps.launch_time import LaunchTime
from python_backend.engine.steps.meter import StepMeter
from python_backend.engine.steps.ports import ChunkResult, Executor, Launched
from python_backend.engine.steps.preparation import Preparation, Preparations
from python_backend.engine.steps.speculator import Speculator
from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier

# The answer with which an engine begins: so many tokens, in no more time than this.
_TRIED_TOKENS = 24
_TRIED_FOR_NS = 500_000_000


class Engine:
    """This project's own runtime: each sequence of an added request ends exactly once, in an event of `step`.

    A request with a guide joins the queue, in the order of its arrival, when the guide is compiled, and one
    with an adapter when that is in its place on the `shelf`. What a step may hold is decided anew before
    each: by the limits, and by the latency targets of the tiers that are present, once it is known what steps
    cost. `held_bytes` tells how much memory of the GPU, and pinned memory of the host, is in use. What steps
    cost is kept in `memory` for the next run.
    """

    def __init__(
        self,
        config: EngineConfig,
        limits: EngineLimits,
        pool: BlockPool,
        executor: Executor,
        compiler: GuideCompiler | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        held_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0),
        memory: CostMemory | None = None,
        shelf: AdapterShelf | None = None,
        speculates: bool = False,
    ) -> None:
        if limits.max_sequence_tokens > pool.capacity_tokens:
            raise ValueError(
                f"a sequence of {limits.max_sequence_tokens} tokens would never fit into a pool of "
                f"{pool.capacity_tokens}"
            )
        self.limits = limits
        self.pool = pool
        self._config = config
        self._executor = executor
        self._in_flight = StepsInFlight(executor, pool.tokens_per_block, self._commit)
        self._preparations = Preparations(compiler, shelf)
        self._shelf = shelf
        self._speculator = Speculator(pool, executor.most_choices) if speculates else None
        self._now_ns = now_ns
        self._held_bytes = held_bytes
        self._scheduler = Scheduler(
            pool,
            admission_rule(config.guaranteed_no_evict, config.static_batching),
            config.max_batch_size,
            config.max_step_tokens,
            config.enable_kv_cache_reuse,
            limits.even_context,
        )
        self._memory = memory
        recalled = None if memory is None else memory.recall()
        self._meter = StepMeter(recalled)
        limits_of_steps = StepLimits(config.max_batch_size, config.max_step_tokens)
        self._control = StepControl(self._scheduler, limits_of_steps, is_tried=recalled is not None)
        self._launch_time = LaunchTime()
        self._has_waited = False
        self._goes_on = False  # from step to step, with nothing in flight between
        self._sequences: dict[int, list[Sequence]] = {}
        self._cancelled: list[Sequence] = []
        self._answers = Answers(self._scheduler, self._speculator)
        self._arrivals = itertools.count()
        self._latest_plan = StepPlan()
        self._step_count = 0
        self._preemption_count = 0
        self._pause_count = 0

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._in_flight)

    @property
    def can_step(self) -> bool:
        """Whether a step would do something; False while all that is here waits for its guides."""
        runnable, now_ns = self._scheduler.running or self._scheduler.waiting, self._now_ns()
        return bool(self._cancelled or self._in_flight) or any(
            not is_held_up(sequence, now_ns) for sequence in runnable
        )

    @property
    def spare_s(self) -> float:
        """How long the next step may wait for newcomers while the device is busy; 0 where none could join."""
        scheduler, running = self._scheduler, self._in_flight.running
        if running is None or scheduler.waiting or self._preparations or self._cancelled:
            return 0.0
        if scheduler.batch.is_full or self._in_flight.undecided is not None:
            return 0.0
        began_ns = max(running.begun_ns, self._meter.over_ns)
        spare_ns = self._launch_time.spare_ns(self._meter.learned, running.shape, began_ns, self._now_ns())
        self._has_waited |= spare_ns > 0
        return spare_ns / 1e9

    def add(self, key: int, request: GenerationRequest, arrival_ns: int | None = None) -> None:
        """Takes a request in; raises InflightError if it could never run."""
        if key in self._sequences:
            raise ValueError(f"key {key} is already in use")
        request = within_vocabulary(request, self.limits.vocabulary)
        refuse_impossible(
            request, self.limits.vocabulary, self.limits.max_sequence_tokens, self._config.max_batch_size
        )
        preparation = self._preparations.begin(key, request)
        room_tokens = self.limits.max_sequence_tokens - len(request.prompt_ids)
        arrived_ns = self._now_ns() if arrival_ns is None else arrival_ns
        sequences = sequences_of(key, next(self._arrivals), request, room_tokens, arrived_ns)
        self._sequences[key] = sequences
        if not self._preparations.awaits(key):
            self._take_in(sequences, preparation)

    def drop_adapter(self, name: str) -> None:
        """Gives its memory back as soon as no sequence has it; one that is not here is not an error."""
        if self._shelf is not None:
            self._shelf.drop(name)

    def cancel(self, key: int) -> None:
        """Ends the request at the next step; a key that is not (or no longer) here is not an error."""
        for sequence in self._sequences.get(key, ()):
            if not sequence.is_cancelled:
                sequence.is_cancelled = True
                self._cancelled.append(sequence)

    def configure(
        self,
        max_step_tokens: int | None = None,
        max_batch_size: int | None = None,
        inter_token_ms: Mapping[Tier, float | None] | None = None,
    ) -> None:
        """New limits from the next step on, and how far apart the tokens of each tier may be.

        None leaves one as it is; a tier that is not among those given, or has None, asks for nothing. Raises
        InflightError for nonsense, and for more than the engine was started with: what it holds for a batch,
        and the memory of a step, were made for that.
        """
        self._control.configure(max_step_tokens, max_batch_size, inter_token_ms)

    def step(self) -> list[SequenceEvent]:
        """Launches the next step, and tells what those gave that are to be over by then.

        Where the tokens of the step that runs are still to be chosen, it does that instead. Raises
        EngineBroken where the engine cannot go on, not even empty.
        """
        self._end_cancelled()
        self._take_in_prepared()
        if (undecided := self._in_flight.undecided) is not None:
            self._decide(*undecided)
            return self._answers.told()
        running, waiting = self._scheduler.running, self._scheduler.waiting
        await_guides(running, waiting, self._now_ns, self._meter.last_ns)
        if self._awaits_tokens:
            self._in_flight.collect(leave=0)
        plan = self._schedule()
        self.pool.flush()
        self._in_flight.launch(plan)
        if self._has_waited and len(self._in_flight) > 1:
            self._launch_time.launched(self._in_flight.has_run_dry)
        self._has_waited = False
        self._in_flight.collect(leave=self._executor.depth - 1 if plan.chunks else 0)
        here = self._scheduler.running or self._scheduler.waiting
        # With guides nobody knows yet whether they are waited for.
        self._goes_on = not self._in_flight and bool(here) and all(each.guide is None for each in here)
        if self._config.check_blocks:
            self.pool.check()
        return self._answers.told()

    def try_alone(self) -> None:
        """Computes an answer that nobody asked for, so that it is known what a step of one sequence takes.

        From steps of many alone nobody can tell what of them is fixed cost.
        """
        if self._meter.learned is not None:  # it is known from a run before
            return
        # Another engine on the same device: what it counts, keeps and guesses by is not this one's.
        config = replace(self._config, enable_kv_cache_reuse=False)
        engine = Engine(config, self.limits, self.pool, self._executor, now_ns=self._now_ns)
        engine._meter = self._meter
        engine.add(0, GenerationRequest([0], min(_TRIED_TOKENS, self.limits.max_sequence_tokens - 1)))
        until_ns = self._now_ns() + _TRIED_FOR_NS
        with self._meter.trying_alone():
            while engine.has_work:
                engine.step()
                if self._now_ns() > until_ns:
                    engine.cancel(0)

    def abort(self, reason: str) -> list[SequenceEvent]:
        """Ends every sequence with an error, after a step that raised; the engine can go on, empty."""
        self._in_flight.clear()
        self._goes_on = False
        sequences = list(itertools.chain(*self._sequences.values()))
        for sequence in sequences:
            sequence.is_suspect = True
            if sequence.finish_reason is None:
                self._answers.end(sequence, FinishReason.ERROR, reason)
        self._leave(sequences)
        return self._answers.told()

    def describe(self) -> Ready:
        return Ready(
            self.limits.max_sequence_tokens,
            self.pool.total_blocks,
            self.pool.tokens_per_block,
            self._config.max_batch_size,
            self._config.max_step_tokens,
            can_pause=not self._config.static_batching,
            window_tokens=self.pool.window_room_tokens,
            window_blocks=self.pool.window.tables if self.pool.window else 0,
            keeps_all=self.pool.window is None or not self.pool.window.is_all,
        )

    def gauges(self) -> Gauges:
        active = sum(map(len, self._sequences.values()))
        if not active:  # what the next may count on is not what the last left
            self._control.follow(self._meter.learned, StepPlan(), self._now_ns() / 1e9)
        chunks = self._latest_plan.chunks if active else []
        context = [chunk.count for chunk in chunks if chunk.is_context]
        gpu_bytes, pinned_bytes = self._held_bytes()
        if self._memory is not None:
            self._memory.keep(self._meter.learned)
        return Gauges(
            step_count=self._step_count,
            active=active,
            scheduled=len(chunks),
            context=len(context),
            waiting=active - len(self._scheduler.running),
            paused=len(self._scheduler.batch.paused),
            used_blocks=self.pool.used_blocks,
            total_blocks=self.pool.total_blocks,
            context_tokens=sum(context),
            reused_blocks=self.pool.reused_blocks,
            cached_blocks=self.pool.cached_blocks,
            preemptions=self._preemption_count,
            pauses=self._pause_count,
            host_blocks=0 if self.pool.host is None else self.pool.host.used_blocks,
            recalled_blocks=0 if self.pool.host is None else self.pool.host.recalled_blocks,
            max_batch_size=self._control.batch_size,
            max_step_tokens=self._scheduler.max_step_tokens,
            memory_bytes=resident_bytes(),
            new_blocks=self.pool.new_blocks,
            gpu_memory_bytes=gpu_bytes,
            pinned_memory_bytes=pinned_bytes,
            busy_ns=self._meter.busy_ns,
            learned=self._meter.confirmed,
            adapters=0 if self._shelf is None else len(self._shelf.names),
            adapter_loads=0 if self._shelf is None else self._shelf.loads,
            drafted_tokens=0 if self._speculator is None else self._speculator.drafted,
            accepted_drafts=0 if self._speculator is None else self._speculator.accepted,
            sequence_steps=self._answers.sequence_steps,
            generated_tokens=self._answers.generated_tokens,
            sized_steps=tuple(self._meter.sized_steps),
            sized_ns=tuple(self._meter.sized_ns),
        )

    def _end_cancelled(self) -> None:
        cancelled = [sequence for sequence in self._cancelled if sequence.finish_reason is None]
        self._cancelled.clear()
        for sequence in cancelled:
            self._answers.end(sequence, FinishReason.CANCELLED)
        self._leave(cancelled)

    def _take_in_prepared(self) -> None:
        for key, preparation in self._preparations.done():
            self._take_in(list(self._sequences[key]), preparation)

    def _take_in(self, sequences: list[Sequence], preparation: Preparation | None) -> None:
        """Into the queue, with what was prepared for them; what could not be ends them all."""
        try:
            guide = None if preparation is None else preparation.compiled()
        except InflightError as failure:
            for sequence in sequences:
                self._answers.fail(sequence, failure)
            self._leave(sequences)
            return
        for sequence in sequences:
            if preparation is not None and preparation.worn is not None:
                sequence.wear(preparation.worn)
            if guide is not None:
                sequence.guide = guide if sequence is sequences[0] else guide.fork()
            self._scheduler.add(sequence)

    @property
    def _awaits_tokens(self) -> bool:
        """Whether the next step is planned when those in flight are over: guesses go behind known tokens."""
        if self._speculator is None or not self._in_flight:
            return False
        most, learned = self._scheduler.max_step_tokens, self._meter.learned
        return self._in_flight.has_guesses or self._speculator.promises(self._latest_plan, learned, most)

    def _schedule(self) -> StepPlan:
        now_ns = self._now_ns()
        self.pool.advance_to(now_ns)
        self._control.follow(self._meter.learned, self._latest_plan, now_ns / 1e9)
        plan = self._scheduler.schedule(now_ns)
        if self._speculator is not None:
            self._speculator.extend(plan, self._meter.learned, self._scheduler.max_step_tokens)
        self._scheduler.reach(plan)
        plan.begun_ns, plan.follows = now_ns, self._goes_on
        for sequence in (*plan.preempted, *plan.paused):
            self._executor.release(sequence)
        for chunk in plan.chunks:
            if chunk.sequence.first_scheduled_ns == 0:
                chunk.sequence.first_scheduled_ns = now_ns
        self._latest_plan = plan
        self._step_count += bool(plan.chunks)
        self._preemption_count += len(plan.preempted)
        self._pause_count += len(plan.paused)
        return plan

    def _decide(self, plan: StepPlan, launched: Launched) -> None:
        """Whose guide does not know in time what may come next gets no token in this step."""
        await_choices(plan.chunks, launched, self._now_ns, self._meter.last_ns)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if chunk.yields_token and sequence.finish_reason is None and sequence.awaits_guide:
                self._scheduler.put_back(chunk)
        self._in_flight.decide()

    def _commit(self, plan: StepPlan, results: list[ChunkResult]) -> None:
        """Counts what was computed, hands out what was found, and lets those leave that ended by it.

        Nobody asks any more for what was found for a sequence that ended while the step ran.
        """
        now_ns, before_ns = self._now_ns(), self._meter.over_ns
        began_ns = self._meter.over(plan, now_ns)
        if self._speculator is not None:
            self._speculator.took(plan, (now_ns - before_ns) / 1e6)
        self._control.observe(plan, self._meter.last_whole_ns / 1e6)
        ended = []
        for chunk, result in zip(plan.chunks, results, strict=True):
            if chunk.sequence.finish_reason is not None:
                continue
            sequence = chunk.sequence
            if sequence.steps is not None:
                tokens = chunk.count - len(chunk.drafts)
                sequence.steps.add(began_ns, now_ns, tokens, len(plan.chunks), plan.tokens, chunk.is_context)
            self._answers.take(chunk, result, now_ns)
            if sequence.finish_reason is not None:
                ended.append(sequence)
        self._leave(ended)
        self._preparations.follow_guides()

    def _leave(self, ended: list[Sequence]) -> None:
        """Nobody finds again what a suspect sequence has computed."""
        for sequence in ended:
            self._executor.release(sequence)
            if self._speculator is not None:
                self._speculator.forget(sequence)
        self._scheduler.remove([sequence for sequence in ended if not sequence.is_suspect])
        self._scheduler.remove([sequence for sequence in ended if sequence.is_suspect], True)
        for sequence in ended:
            others = self._sequences[sequence.key]
            others.remove(sequence)
            if not others:
                del self._sequences[sequence.key]
                self._preparations.end(sequence.key)
