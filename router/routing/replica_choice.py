"""Which replicas may be sent requests, by a circuit breaker as a value, and which of them gets one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from router.core.generation import Failure


class Phase(Enum):
    UP = "up"
    DOWN = "down"
    TRIAL = "trial"  # one request is under way to find out


# So many without an answer between them, within this time.
FAILURES_TO_BREAK = 5
WINDOW_S = 10.0
_SHORTEST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
# A dead process is found and revived by whoever probes; requests try by themselves only where nobody does.
STUB_PAUSE_S = 10.0
# A trial that has not been heard of for so long says nothing any more.
TRIAL_LIMIT_S = 5.0
_COMES_BACK = (Failure.STUB_DEAD, Failure.ENGINE_DIED, Failure.ENGINE_AWAY)
_AT_ONCE = (Failure.UNREACHABLE, *_COMES_BACK)


def pause_s(trials_failed: int) -> float:
    return float(min(_SHORTEST_PAUSE_S * 2 ** min(trials_failed, 10), LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class Health:
    """Evidence counts only if its request began in the phase that it is about.

    Otherwise streams that were under way when a replica went down would take it up again as they finish, and
    those that fail late would take it down after it came back.
    """

    phase: Phase = Phase.UP
    since_s: float = -inf
    failures_s: tuple[float, ...] = ()
    trials_failed: int = 0
    retry_s: float = inf  # while down: when a request may try
    why: str = ""
    is_reviving: bool = False  # while down: a process of the model died, and is brought back
    gone_s: float = -inf  # while down: since when its server is not there

    @property
    def is_up(self) -> bool:
        return self.phase is Phase.UP

    def may_take(self, now_s: float) -> bool:
        return self.phase is Phase.UP or now_s >= self.look_s

    @property
    def look_s(self) -> float:
        """From when on it may take, if nothing happens before."""
        if self.phase is Phase.UP:
            return -inf
        return self.retry_s if self.phase is Phase.DOWN else self.since_s + TRIAL_LIMIT_S

    def taking(self, now_s: float) -> Health:
        """A request that it may take is about to be sent."""
        if self.phase is Phase.UP:
            return self
        return replace(self, phase=Phase.TRIAL, since_s=now_s)

    def after_answer(self, began_s: float, now_s: float) -> Health:
        """A request that began then has an answer, or the first part of one."""
        if began_s < self.since_s or self.phase is Phase.DOWN:
            return self
        if self.phase is Phase.TRIAL:
            return Health(since_s=now_s)
        return replace(self, failures_s=()) if self.failures_s else self

    def after_failure(self, failure: Failure, began_s: float, now_s: float) -> Health:
        if began_s < self.since_s or self.phase is Phase.DOWN or failure is Failure.CUT:
            return self
        if failure in (Failure.OVERLOADED, Failure.CALLER):  # Triton and the model are there
            return self.after_answer(began_s, now_s) if self.phase is Phase.TRIAL else self
        if self.phase is Phase.TRIAL:
            return self._broken(failure, now_s, self.trials_failed + 1)
        failures_s = (*(at_s for at_s in self.failures_s if at_s > now_s - WINDOW_S), now_s)
        if failure in _AT_ONCE or len(failures_s) >= FAILURES_TO_BREAK:
            return self._broken(failure, now_s, 0)
        return replace(self, failures_s=failures_s)

    def _broken(self, failure: Failure, now_s: float, trials_failed: int) -> Health:
        comes_back = failure in _COMES_BACK
        retry_s = now_s + (STUB_PAUSE_S if comes_back else pause_s(trials_failed))
        gone_s = self._gone_s(now_s) if failure is Failure.UNREACHABLE else self.gone_s
        return Health(Phase.DOWN, now_s, (), trials_failed, retry_s, failure.value, comes_back, gone_s)

    def down(self, why: str, now_s: float, reviving: bool, server_is_gone: bool = False) -> Health:
        """Known for certain; until it is known to be up no request tries."""
        gone_s = self._gone_s(now_s) if server_is_gone else -inf
        return Health(Phase.DOWN, now_s, why=why, is_reviving=reviving, gone_s=gone_s)

    def _gone_s(self, now_s: float) -> float:
        """However often that is found out again, it is gone since the first time."""
        return now_s if self.gone_s == -inf else self.gone_s

    @property
    def is_gone(self) -> bool:
        """Whether its server is not there."""
        return self.gone_s > -inf

    def is_awaited(self, now_s: float, restart_s: float) -> bool:
        """Whether it is worth waiting for: a server is started again soon, or by nobody."""
        return self.is_reviving or now_s < self.gone_s + restart_s

    def up(self, now_s: float) -> Health:
        return self if self.phase is Phase.UP else Health(since_s=now_s)


# Of a prompt: enough to tell conversations apart, and no more than all turns of one have in common.
OPENING_CHARS = 512
_OPENING_IDS = OPENING_CHARS // 4
# An answer may be long, and seldom is.
EXPECTED_TOKENS = 256
# What is under way is never nothing: an answer that is longer than expected still takes its share.
LEAST_TOKENS = 16
_64_BITS = 2**64 - 1
_MIXER = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio: the upper bits come of all lower ones


class Candidate(Protocol):
    """A replica that may take the request; `begun` is how many it was sent so far."""

    @property
    def name(self) -> str: ...
    @property
    def outstanding_tokens(self) -> int: ...
    @property
    def begun(self) -> int: ...


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


class Opening(NamedTuple):
    """How a prompt begins, and how many tokens it has: a cache saves no more of it."""

    text: bytes
    tokens: int


def opening_of(prompt_ids: Sequence[int]) -> bytes:
    return repr(prompt_ids[:_OPENING_IDS]).encode()


def most_tokens(least_tokens: int, prompt_tokens: int) -> int:
    """What a replica may have to do and still be preferred for what its cache may hold of a prompt."""
    return least_tokens + max(prompt_tokens, least_tokens // 4)


def choose(candidates: Sequence[AnyCandidate], opening: Opening | None) -> AnyCandidate | None:
    """The one that the opening belongs to, unless it has more to do than that could save.

    When one leaves, only its own openings move, and they come back with it.
    """
    if not candidates:
        return None
    if opening is None:
        return min(candidates, key=_load)
    return home_or_other(candidates, home_of(candidates, opening.text), opening.tokens)


def home_or_other(candidates: Sequence[AnyCandidate], home: AnyCandidate, tokens: int) -> AnyCandidate:
    least_loaded = min(candidates, key=_load)
    most = most_tokens(least_loaded.outstanding_tokens, tokens)
    return home if home.outstanding_tokens <= most else least_loaded


def home_of(candidates: Sequence[AnyCandidate], opening: bytes) -> AnyCandidate:
    """The one with the largest hash of both."""
    number = crc32(opening)
    return max(candidates, key=lambda each: (number ^ _name_number(each.name)) * _MIXER & _64_BITS)


def _load(candidate: Candidate) -> tuple[int, int, str]:
    return candidate.outstanding_tokens, candidate.begun, candidate.name


@lru_cache(maxsize=1024)
def _name_number(name: str) -> int:
    """The same in every router, as that of the key is."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def answer_tokens(max_tokens: int, context_tokens: int) -> int:
    """What is to be expected of an answer before it begins."""
    return max(min(max_tokens, context_tokens, EXPECTED_TOKENS), LEAST_TOKENS)
