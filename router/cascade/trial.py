"""A small model's answer on trial: held back, its certainty noted, and judged before anybody sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from router.cascade.checks import Findings, Step, certainty, next_step
from router.core.json_answers import fault_of_answer
from router.http.exchange import Exchange
from router.http.inner_exchange import Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from router.cascade.cascade import Cascade
    from router.cascade.checks import Reason
    from router.core.generation import Delta, Generation, GenerationCall, Pipeline
    from router.http.exchange import Headers, Request

    AskJudge = Callable[[str], Awaitable[bool]]


class Inadequate(Exception):
    """The answer is not told; no error of the request, which the large model is asked then."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Trial:
    """Of one request. It stands where a journal would: a larger model may have to answer."""

    judges = True

    def __init__(self, cascade: Cascade, ask_judge: AskJudge, offers_tools: bool) -> None:
        self._cascade = cascade
        self._ask_judge = ask_judge
        self._holds_to_schema = cascade.checks.has_schema and not offers_tools  # a call is no such text
        self._log_probs: dict[int, list[float]] = {}

    def generate(self, pipeline: Pipeline, index: int, call: GenerationCall) -> Generation:
        # An echo with log probabilities would be another answer than the one without.
        if self._cascade.checks.least_log_prob is None or call.echo:
            return pipeline.generate(call)
        asked = msgspec.structs.replace(call, top_log_probs=call.top_log_probs or 0)
        return _NotedGeneration(pipeline.generate(asked), self._log_probs.setdefault(index, []))

    def goes_on_elsewhere(self, error: BaseException | None) -> bool:
        return False  # to the caller it is a call of its own, and paid for

    async def judge(self, prompts: Sequence[str], texts: Sequence[str]) -> None:
        found = Findings(certainty(list(self._log_probs.values())), self._fits(texts))
        decision = next_step(self._cascade.checks, found)
        if decision.step is Step.JUDGE:
            agrees = await self._ask_judge(self._cascade.question(prompts, texts))
            found = Findings(found.log_prob, found.fits_schema, agrees)
            decision = next_step(self._cascade.checks, found)
        if decision.reason is not None:
            raise Inadequate(decision.reason)

    def _fits(self, texts: Sequence[str]) -> bool:
        schema = self._cascade.schema
        return not self._holds_to_schema or all(fault_of_answer(text, schema) is None for text in texts)


class _NotedGeneration:
    def __init__(self, behind: Generation, log_probs: list[float]) -> None:
        self._behind = behind
        self._deltas = aiter(behind)
        self._log_probs = log_probs

    @property
    def lost_attempts(self) -> int:
        return getattr(self._behind, "lost_attempts", 0)

    def stop(self) -> None:
        self._behind.stop()

    def __aiter__(self) -> _NotedGeneration:
        return self

    async def __anext__(self) -> Delta:
        delta = await anext(self._deltas)
        self._log_probs += [each.log_prob for each in delta.tokens if each.log_prob is not None]
        return delta


class HoldingExchange(Exchange):
    """Sends nothing until `release`; what came last counts, and an error that it was told of is no answer."""

    __slots__ = ("_answer_headers", "_behind", "_is_whole", "_pieces")

    def __init__(self, behind: Exchange, request: Request) -> None:
        super().__init__(request, behind._wire)
        self._behind = behind
        self._is_whole = False
        self._pieces: list[bytes] = []
        self._answer_headers: tuple[tuple[str, str], ...] = ()
        behind.on_disconnect(self.client_left)

    def start(self, status: int, headers: Headers, length_bytes: int | None = None) -> None:
        self.started, self.status, self._answer_headers = True, status, tuple(headers)

    def send(self, data: bytes) -> Turn:
        self._pieces.append(data)
        return Turn()

    def fill_silence(self, data: bytes) -> None: ...

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self.start(status, headers)
        self._is_whole = True
        self.end(body)

    def end(self, data: bytes = b"") -> None:
        self._pieces.append(data)
        self.ended = True

    def cut(self) -> None:
        self.ended = True

    def release(self) -> None:
        body = b"".join(self._pieces)
        if self._is_whole:
            self._behind.respond(self.status, body, self._answer_headers)
        else:
            self._behind.start(self.status, self._answer_headers)
            self._behind.end(body)
