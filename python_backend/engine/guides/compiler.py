"""Turning guides into states that follow an answer, without harm from those that cannot be compiled."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Timer, get_native_id
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits

from python_backend.engine.guides.follower import Follower
from python_backend.engine.guides.limits import GuideLimits, refusal
from python_backend.engine.guides.state import GuideState
from python_backend.engine.guides.token_table import TokenTable
from python_backend.engine.guides.trial_process import TrialProcess
from python_backend.host.priorities import give_way
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
    """A guide that is to be compiled, for as long as somebody wants it.

    Answers are forks of its `stems`, in turn. Forks of one stem are followed one after the other, for they
    share what llguidance learns about the guide; so a guide that many follow has several.
    """

    owner: str
    tenant: str
    guide: Guide
    compiled: Future[str] = field(default_factory=Future)  # its grammar
    asking: int = 0
    tried_s: float = 0.0  # of a processor, each
    took_s: float = 0.0
    stems: list[GuideState] = field(default_factory=list)
    forks: int = 0
    grows: bool = False


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
        # They give way to steps. Where one holds what the step loop waits for, the cores are free for it.
        self._compiling = ThreadPoolExecutor(
            limits.threads, "guide-compile", lambda: give_way(get_native_id())
        )
        self._follower = Follower(limits)
        self._trials: SimpleQueue[TrialProcess] = SimpleQueue()
        for _ in range(limits.threads):
            self._trials.put(TrialProcess(limits))
        self._looking = Lock()
        self._forking = Lock()
        self._queue: FairQueue[_Job] = FairQueue(limits.threads, limits.waiting_guides)
        self._jobs: OrderedDict[tuple[str, Guide], _Job] = OrderedDict()
        self._rests: set[Timer] = set()

    def read_tokens(self) -> None:
        """In a thread, while nobody is served yet: everything else waits for the interpreter meanwhile."""
        self._follower.submit(self._token_table)

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
        job.compiled.add_done_callback(lambda done: self._hand_over(job, answer))
        return answer

    def follow(self) -> None:
        """Begins to look for what may come after the tokens that guides were told; returns at once."""
        self._follower.follow()

    def close(self) -> None:
        with self._looking:
            for rest in self._rests:
                rest.cancel()
        self._compiling.shutdown(wait=True, cancel_futures=True)
        self._follower.close()
        while not self._trials.empty():
            self._trials.get().close()

    def _job(self, guide: Guide, owner: str, tenant: str) -> _Job:
        limits = self._limits
        size = len(guide.text.encode())
        if size > limits.text_bytes:
            raise refusal(f"has {size} bytes; allowed: at most {limits.text_bytes}")
        with self._looking:
            job = self._jobs.get((owner, guide))
            if job is None:
                job = _Job(owner, tenant, guide)
                if not self._queue.join(tenant, job):
                    text = f"{self._queue.waiting(tenant)} guides are waiting to be compiled; try again later"
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
            grammar = self._tried(job)
            job.stems.append(self._stem(job, grammar))
            while len(job.stems) < min(job.asking, self._limits.stems(job.took_s)):
                job.stems.append(self._stem(job, grammar))
        except BaseException as error:
            with self._looking:
                self._jobs.pop((job.owner, job.guide), None)
            job.compiled.set_exception(error)
        else:
            job.compiled.set_result(grammar)
        finally:
            with self._looking:
                self._queue.done(job.tenant)
                self._forget_some()
                self._rest(job.tenant, self._limits.rest_s(job.tried_s + job.took_s))
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

    def _hand_over(self, job: _Job, answer: Future[GuideState]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            grammar = job.compiled.result()
            with self._forking:
                stem = job.stems[job.forks % len(job.stems)]
                job.forks += 1
                may_grow = len(job.stems) < min(job.forks, self._limits.stems(job.took_s))
                begins, job.grows = may_grow and not job.grows, may_grow or job.grows
            if begins:
                with suppress(RuntimeError):  # closed meanwhile
                    self._compiling.submit(self._grow, job, grammar)
            answer.set_result(stem.fork())
        except Exception as error:
            answer.set_exception(error)

    def _grow(self, job: _Job, grammar: str) -> None:
        """One more stem, while the answers are handed out that ask for it."""
        try:
            stem = self._stem(job, grammar)
            with self._forking:
                job.stems.append(stem)
        finally:
            job.grows = False

    def _stem(self, job: _Job, grammar: str) -> GuideState:
        table = self._follower.submit(self._token_table).result()
        began_s = time.thread_time()
        matcher = LLMatcher(table.tokenizer, grammar, log_level=0, limits=_PARSER_LIMITS)
        job.took_s = time.thread_time() - began_s
        if matcher.is_error():
            raise refusal(matcher.get_error())
        state = GuideState(self._follower.begin(matcher, table), self._follower)
        state.bits(None)
        return state

    def _tried(self, job: _Job) -> str:
        trial = self._trials.get()
        try:
            return trial.grammar_of(job.guide)
        finally:
            job.tried_s = trial.took_s
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
