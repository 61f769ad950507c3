"""Turning guides into states that follow an answer, without harm from those that cannot be compiled."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Timer
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits

from python_backend.engine.guides.limits import GuideLimits, refusal
from python_backend.engine.guides.state import GuideState
from python_backend.engine.guides.token_table import TokenTable
from python_backend.engine.guides.trial_process import TrialProcess
from python_backend.sharing.fair_queue import FairQueue
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from python_backend.engine.request import Guide

_ROUNDING = 1e-9
_PARSER_LIMITS = LLParserLimits(verbose_errors=False)


@dataclass(eq=False, slots=True)
class _Job:
    """A guide that is to be compiled, for as long as somebody wants it."""

    owner: str
    tenant: str
    guide: Guide
    compiled: Future[GuideState] = field(default_factory=Future)
    asking: int = 0
    took_s: float = 0.0  # of a processor


class GuideCompiler:
    """Compiles guides for one model; the tokenizer is read with the first of them, or by `read_tokens`.

    A guide is compiled in a process of its own before it is admitted to this one. Equal guides of one owner
    are compiled once, as long as they are remembered; how long it takes tells nobody what others ask for.
    Tenants take turns, and whoever's guides are costly waits between them: on a small machine the steps of
    others need the processors.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        vocabulary: int,
        end_ids: Collection[int],
        limits: GuideLimits | None = None,
    ) -> None:
        self._limits = limits = limits or GuideLimits()
        self._tokenizer_file = tokenizer_file
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._table: TokenTable | InflightError | None = None
        self._reading = Lock()
        # Of the usual priority: a thread that is seldom run may hold what the step loop waits for.
        self._compiling = ThreadPoolExecutor(limits.threads, "guide-compile")
        self._following = ThreadPoolExecutor(limits.threads, "guide-follow")
        self._trials: SimpleQueue[TrialProcess] = SimpleQueue()
        for _ in range(limits.threads):
            self._trials.put(TrialProcess(limits))
        self._looking = Lock()
        self._queue: FairQueue[_Job] = FairQueue(limits.threads, limits.waiting_guides)
        self._jobs: OrderedDict[tuple[str, Guide], _Job] = OrderedDict()
        self._rests: set[Timer] = set()

    def read_tokens(self) -> None:
        """In a thread, while nobody is served yet: everything else waits for the interpreter meanwhile."""
        self._compiling.submit(self._token_table)

    def compile(self, guide: Guide, owner: str, tenant: str = "") -> Future[GuideState]:
        """A state at the beginning of an answer; InflightError through the future where there is none.

        Where the future is cancelled and nobody else wants the guide, it loses its turn.
        """
        answer: Future[GuideState] = Future()
        try:
            job = self._job(guide, owner, tenant)
        except InflightError as error:
            answer.set_exception(error)
            return answer
        answer.add_done_callback(lambda done: self._answered(job))
        job.compiled.add_done_callback(lambda done: _hand_over(done, answer))
        return answer

    def close(self) -> None:
        with self._looking:
            for rest in self._rests:
                rest.cancel()
        self._compiling.shutdown(wait=True, cancel_futures=True)
        self._following.shutdown(wait=True, cancel_futures=True)
        while not self._trials.empty():
            self._trials.get().close()

    def _job(self, guide: Guide, owner: str, tenant: str) -> _Job:
        limits = self._limits
        size = len(guide.text.encode())
        if size > limits.text_bytes:
            raise refusal(f"has {size} bytes; allowed are {limits.text_bytes}")
        with self._looking:
            job = self._jobs.get((owner, guide))
            if job is None:
                job = _Job(owner, tenant, guide)
                if not self._queue.join(tenant, job):
                    text = f"{self._queue.waiting(tenant)} guides wait to be compiled; try again later"
                    raise InflightError(ErrorKind.RATE_LIMITED, text)
                self._jobs[owner, guide] = job
                self._forget_some()
            self._jobs.move_to_end((owner, guide))
            job.asking += 1
            self._begin()
        return job

    def _forget_some(self) -> None:
        """The oldest of whoever has most, so that nobody's are forgotten for another's."""
        while True:
            held: defaultdict[str, float] = defaultdict(float)
            for (owner, _), job in self._jobs.items():
                held[owner] += self._limits.weight(job.took_s)
            if sum(held.values()) <= 1 + _ROUNDING:
                return
            greediest = max(held, key=held.__getitem__)
            del self._jobs[next(key for key in self._jobs if key[0] == greediest)]

    def _begin(self) -> None:
        while (found := self._queue.next()) is not None:
            self._compiling.submit(self._compile, found[1])

    def _answered(self, job: _Job) -> None:
        """One of those who asked has its answer, or has left."""
        with self._looking:
            job.asking -= 1
            if not job.asking and self._queue.leave(job.tenant, job):
                self._jobs.pop((job.owner, job.guide), None)

    def _compile(self, job: _Job) -> None:
        try:
            state = self._state(job)
        except BaseException as error:
            with self._looking:
                self._jobs.pop((job.owner, job.guide), None)
            job.compiled.set_exception(error)
        else:
            job.compiled.set_result(state)
        finally:
            with self._looking:
                self._queue.done(job.tenant)
                self._forget_some()
                self._rest(job.tenant, self._limits.rest_s(job.took_s))
                with suppress(RuntimeError):  # closed meanwhile
                    self._begin()

    def _rest(self, tenant: str, rest_s: float) -> None:
        if not rest_s:
            return

        def wake() -> None:
            with self._looking:
                self._rests.discard(timer)
                self._queue.wake(tenant)
                with suppress(RuntimeError):  # closed meanwhile
                    self._begin()

        self._queue.rest(tenant)
        timer = Timer(rest_s, wake)
        timer.daemon = True
        self._rests.add(timer)
        timer.start()

    def _state(self, job: _Job) -> GuideState:
        grammar = self._tried(job.guide)
        table = self._token_table()
        began_s = time.thread_time()
        matcher = LLMatcher(table.tokenizer, grammar, log_level=0, limits=_PARSER_LIMITS)
        job.took_s = time.thread_time() - began_s
        if matcher.is_error():
            raise refusal(matcher.get_error())
        state = GuideState(matcher, table, self._following, self._limits)
        state.bits(None)
        return state

    def _tried(self, guide: Guide) -> str:
        trial = self._trials.get()
        try:
            return trial.grammar_of(guide)
        finally:
            self._trials.put(trial)

    def _token_table(self) -> TokenTable:
        with self._reading:
            if self._table is None:
                try:
                    self._table = TokenTable(self._tokenizer_file, self._vocabulary, self._end_ids)
                except InflightError as error:
                    self._table = error  # reading it takes long, and would end the same
            if isinstance(self._table, InflightError):
                raise self._table
            return self._table


def _hand_over(compiled: Future[GuideState], answer: Future[GuideState]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(compiled.result().fork())
    except Exception as error:
        answer.set_exception(error)
