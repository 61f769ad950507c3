"""How much a guide may cost, and how one that costs more is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from python_backend.wire.errors import ErrorKind, InflightError

_LONGEST_REASON = 300
_MOST_THREADS = 8


def _half_of_processors() -> int:
    return max(2, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True, slots=True)
class GuideLimits:
    """`compile_s` bounds a guide's compilation, `step_s` the finding of the tokens that may come next.

    `waiting_guides` are those of one tenant, `cached_guides` of all: fewer where they took `cached_s` in all
    to compile, for what takes long is large. Compiling takes `share` of a processor for one tenant
    at most, but what takes no longer than `free_s` does not count: nearly every guide. Answers are followed
    by `following_threads`.
    """

    text_bytes: int = 64 * 1024
    compile_s: float = 2.0
    step_s: float = 0.5
    memory_bytes: int = 768 * 1024 * 1024
    waiting_guides: int = 64
    cached_guides: int = 64
    cached_s: float = 4.0
    threads: int = 2
    following_threads: int = field(default_factory=_half_of_processors)
    share: float = 0.2
    free_s: float = 0.03

    def weight(self, took_s: float) -> float:
        """The part of the cache that a guide takes which was compiled in so much time."""
        return max(1 / self.cached_guides, took_s / self.cached_s)

    def stems(self, took_s: float) -> int:
        """How often a guide may be compiled for those who follow it at once: once where that takes long."""
        return self.following_threads if took_s <= self.free_s / 4 else 1

    def rest_s(self, took_s: float) -> float:
        """How long the tenant of a guide waits for the next one after it was compiled in so much time."""
        return took_s * (1 / self.share - 1) if took_s > self.free_s else 0.0


def refusal(reason: str) -> InflightError:
    """Of llguidance's reasons, which draw the grammar and point into it, what fits on a line."""
    line = " ".join(reason.replace("<non-verbose/>", "").split())
    if len(line) > _LONGEST_REASON:
        line = line[:_LONGEST_REASON] + " ..."
    return InflightError(ErrorKind.INVALID_REQUEST, f"guided_decoding_guide: {line}", "guided_decoding_guide")
