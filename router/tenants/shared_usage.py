"""What other routers took of a limit, charged to the same limit here.

Each router tells what it has taken since there is a limit, and charges its own buckets with what the others
took since it last heard of them. So there is no part of a limit that an idle router keeps to itself, and all
together grant at most burst + rate x time, plus what the others took since they were last heard.

Whoever is heard for the first time has taken an unknown part long ago: then a bucket here has at most what is
left of it there. The same holds for one that is made here while others use the limit already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Used(NamedTuple):
    """Of one subject in one router: taken since `generation` began, left of its limits, running.

    What is left is None where there is no such limit, and less than 0 for a debt.
    """

    generation: int
    requests: int
    tokens: int
    requests_left: int | None
    tokens_left: int | None
    running: int


class Elsewhere(NamedTuple):
    """Of one subject in all other routers: the least that is left of its limits, and what runs in all."""

    requests_left: int | None = None
    tokens_left: int | None = None
    running: int = 0


@dataclass(frozen=True, slots=True)
class Charge:
    """What to take of one subject's buckets here, once they have no more than what is left there."""

    subject: str
    requests: int = 0
    tokens: int = 0
    requests_left: int | None = None
    tokens_left: int | None = None


NOTHING = Elsewhere()


class Others:
    """What was heard last of every other router; it is forgotten with the router."""

    def __init__(self) -> None:
        self._said: Mapping[str, Mapping[str, Used]] = {}
        self.running: dict[str, int] = {}  # by subject, where there is any

    def hear(self, said: Mapping[str, Mapping[str, Used]]) -> list[Charge]:
        """All that others say now, by router and subject; who is not among them has left."""
        charges = [charge for router, now in said.items() for charge in _charges(self._said.get(router), now)]
        self._said = said
        self.running = {}
        for now in said.values():
            for subject, used in now.items():
                if used.running:
                    self.running[subject] = self.running.get(subject, 0) + used.running
        return charges

    def of(self, subject: str) -> Elsewhere:
        found = [used for now in self._said.values() if (used := now.get(subject)) is not None]
        if not found:
            return NOTHING
        return Elsewhere(
            _least(used.requests_left for used in found),
            _least(used.tokens_left for used in found),
            self.running.get(subject, 0),
        )

    @property
    def count(self) -> int:
        return len(self._said)


def _least(left: Iterable[int | None]) -> int | None:
    return min((each for each in left if each is not None), default=None)


def _charges(before: Mapping[str, Used] | None, now: Mapping[str, Used]) -> Iterator[Charge]:
    for subject, used in now.items():
        if before is None:
            yield Charge(subject, 0, 0, used.requests_left, used.tokens_left)
            continue
        last = before.get(subject)
        if last is None or last.generation != used.generation:
            yield Charge(subject, used.requests, used.tokens)
        elif last.requests != used.requests or last.tokens != used.tokens:
            yield Charge(subject, used.requests - last.requests, used.tokens - last.tokens)
