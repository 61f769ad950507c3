"""Whether a Triton model lives, by what became of its pings: one that is slow is not dead.

Triton says at once of a process that died that it is not healthy, so that counts at once. A process that is
frozen says nothing, and neither does one on a machine that has too much to do. So silence counts only when
several pings in a row went unanswered while Triton itself answered, this router was on time, and no request
got anything from the model either; the answer to any of those pings, however late, undoes it all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from python_backend.wire.errors import ENGINE_AWAY

NEVER_S = -math.inf
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# One that lived this long after it was revived is trusted again.
TRUSTED_AFTER_S = 60.0


class Queue(Enum):
    """What a ping may have to wait for, where the model is asked by others too."""

    NONE = "none"
    SHORT = "short"  # texts to be cut into tokens
    LONG = "long"  # texts to be computed


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """A ping each `period_s`, answered within `late_s` unless something is wrong; a router that comes more
    than `punctual_s` late to look has no say. Work that is not heard of for `silence_s` is looked into."""

    period_s: float = 1.0
    late_s: float = 1.5
    misses: int = 3
    punctual_s: float = 0.5
    short_queue_s: float = 10.0
    silence_s: float = 30.0
    one_token_s: float = 30.0

    def patience_s(self, queue: Queue, is_busy: bool) -> float:
        """How long a model may leave pings unanswered that wait behind others."""
        waits_s = {Queue.NONE: 0.0, Queue.SHORT: self.short_queue_s, Queue.LONG: self.silence_s}
        return waits_s[queue] if is_busy else 0.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """`missed` pings in a row had no answer in time, the first of them sent at `since_s`.

    `heard_s` is when a request last got something out of the model: as good as an answer to all pings that
    were sent before.
    """

    missed: int = 0
    since_s: float = math.inf
    is_dead: bool = False

    def after_miss(self, sent_s: float, heard_s: float) -> Pulse:
        if sent_s <= heard_s:
            return replace(self, missed=0, since_s=math.inf)
        if self.since_s <= heard_s:
            return replace(self, missed=1, since_s=sent_s)
        return replace(self, missed=self.missed + 1, since_s=min(self.since_s, sent_s))

    def after_death(self) -> Pulse:
        return replace(self, is_dead=True)


LIVELY = Pulse()


def says_dead(text: str) -> bool:
    """Triton's words for a request to a model whose process is gone."""
    return "tub process" in text and ("not healthy" in text or "unhealthy" in text)


def says_away(text: str) -> bool:
    """The words of a model whose engine died and that is starting another."""
    return ENGINE_AWAY in text


def counts_as_missed(sent_s: float, now_s: float, limits: ProbeLimits) -> bool:
    """Whether a ping without an answer says something: not when it is we who come too late to look."""
    waited_s = now_s - sent_s
    return limits.late_s <= waited_s <= limits.late_s + limits.punctual_s


def is_broken(pulse: Pulse, now_s: float, patience_s: float, server_missed: int, limits: ProbeLimits) -> bool:
    """Whether this model must be loaded again; `patience_s` is how long its pings may queue."""
    is_silent = pulse.missed >= limits.misses and now_s - pulse.since_s >= patience_s
    return pulse.is_dead or (is_silent and server_missed == 0)


def is_server_gone(pulse: Pulse, limits: ProbeLimits) -> bool:
    """Whether nothing at all comes from a Triton server that still takes connections."""
    return pulse.missed >= limits.misses


def is_silent(now_s: float, busy_since_s: float, heard_s: float, limits: ProbeLimits) -> bool:
    """Whether requests have been in flight for long without any progress."""
    return now_s - max(busy_since_s, heard_s) >= limits.silence_s


@dataclass(frozen=True, slots=True)
class Revivals:
    """How often in a row a model was revived and did not stay alive."""

    attempts: int = 0
    last_s: float = NEVER_S

    def after_attempt(self, now_s: float) -> Revivals:
        is_new_trouble = now_s - self.last_s >= TRUSTED_AFTER_S + self._pause_s
        return Revivals(1 if is_new_trouble else self.attempts + 1, now_s)

    @property
    def due_s(self) -> float:
        """When it may be revived once more: the first time at once, then ever later."""
        return self.last_s + self._pause_s

    @property
    def _pause_s(self) -> float:
        if self.attempts == 0:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2 ** min(self.attempts - 1, 10), LONGEST_PAUSE_S))
