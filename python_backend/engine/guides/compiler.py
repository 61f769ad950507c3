"""Turning guides into states that follow an answer, without harm from those that cannot be compiled."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits

from python_backend.engine.guides.limits import GuideLimits, refusal
from python_backend.engine.guides.state import GuideState
from python_backend.engine.guides.token_table import TokenTable
from python_backend.engine.guides.trial_process import TrialProcess
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from python_backend.engine.request import Guide

_PARSER_LIMITS = LLParserLimits(verbose_errors=False)


class GuideCompiler:
    """Compiles guides for one model; the tokenizer is read with the first of them.

    A guide is compiled in a process of its own before it is admitted to this one. Equal guides of one owner
    are compiled once, as long as they are remembered; how long it takes tells nobody what others ask for.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        vocabulary: int,
        end_ids: Collection[int],
        limits: GuideLimits | None = None,
    ) -> None:
        self._limits = limits or GuideLimits()
        self._tokenizer_file = tokenizer_file
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._table: TokenTable | None = None
        self._reading = Lock()
        self._compiling = ThreadPoolExecutor(self._limits.threads, "guide-compile")
        self._following = ThreadPoolExecutor(self._limits.threads, "guide-follow")
        self._trials: SimpleQueue[TrialProcess] = SimpleQueue()
        for _ in range(self._limits.threads):
            self._trials.put(TrialProcess(self._limits))
        self._looking = Lock()
        self._states: OrderedDict[tuple[str, Guide], Future[GuideState]] = OrderedDict()
        self._waiting_guides = 0

    def compile(self, guide: Guide, owner: str) -> Future[GuideState]:
        """A state at the beginning of an answer; InflightError through the future where there is none."""
        answer: Future[GuideState] = Future()
        answer.set_running_or_notify_cancel()
        try:
            compiled = self._compiled((owner, guide))
        except InflightError as error:
            answer.set_exception(error)
            return answer
        compiled.add_done_callback(lambda done: _hand_over(done, answer))
        return answer

    def close(self) -> None:
        self._compiling.shutdown(wait=True, cancel_futures=True)
        self._following.shutdown(wait=True, cancel_futures=True)
        while not self._trials.empty():
            self._trials.get().close()

    def _compiled(self, owned: tuple[str, Guide]) -> Future[GuideState]:
        limits = self._limits
        size = len(owned[1].text.encode())
        if size > limits.text_bytes:
            raise refusal(f"has {size} bytes; allowed are {limits.text_bytes}")
        with self._looking:
            compiled = self._states.get(owned)
            if compiled is None:
                if self._waiting_guides >= limits.waiting_guides:
                    text = f"{self._waiting_guides} guides wait to be compiled; try again later"
                    raise InflightError(ErrorKind.OVERLOADED, text)
                self._waiting_guides += 1
                compiled = self._compiling.submit(self._compile, owned)
                self._states[owned] = compiled
                while len(self._states) > limits.cached_guides:
                    self._states.popitem(last=False)
            self._states.move_to_end(owned)
        return compiled

    def _compile(self, owned: tuple[str, Guide]) -> GuideState:
        try:
            grammar = self._tried(owned[1])
            table = self._token_table()
            matcher = LLMatcher(table.tokenizer, grammar, log_level=0, limits=_PARSER_LIMITS)
            if matcher.is_error():
                raise refusal(matcher.get_error())
            state = GuideState(matcher, table, self._following, self._limits)
            state.mask(None)
            return state
        except BaseException:
            with self._looking:
                self._states.pop(owned, None)
            raise
        finally:
            with self._looking:
                self._waiting_guides -= 1

    def _tried(self, guide: Guide) -> str:
        trial = self._trials.get()
        try:
            return trial.grammar_of(guide)
        finally:
            self._trials.put(trial)

    def _token_table(self) -> TokenTable:
        with self._reading:
            if self._table is None:
                self._table = TokenTable(self._tokenizer_file, self._vocabulary, self._end_ids)
            return self._table


def _hand_over(compiled: Future[GuideState], answer: Future[GuideState]) -> None:
    try:
        answer.set_result(compiled.result().fork())
    except Exception as error:
        answer.set_exception(error)
