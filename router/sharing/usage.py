"""What other routers took of a limit, charged to the same limit here.

Each router tells what it has ever taken, and charges its own buckets with what the others took since it last
heard of them. So there is no part of a limit that an idle router keeps to itself, and all together grant at
most burst + rate x time, plus what the others took since they were last heard.

Whoever is heard for the first time has taken an unknown part long ago: then a bucket here has at most what is
left of it there. The same holds for one that is made here while others use the limit already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Used(NamedTuple):
    """Of one subject in one router: taken since `generation` began, lacking to full buckets, running."""

    generation: int
    requests: int
    tokens: int
    requests_lacking: int
    tokens_lacking: int
    running: int


class Elsewhere(NamedTuple):
    """Of one subject in all other routers: what a bucket lacks there at most, and what runs in all."""

    requests_lacking: int = 0
    tokens_lacking: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class Charge:
    """What to take of one subject's buckets here; then they lack at least so much."""

    subject: str
    requests: int = 0
    tokens: int = 0
    requests_lacking: int = 0
    tokens_lacking: int = 0


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
            max(used.requests_lacking for used in found),
            max(used.tokens_lacking for used in found),
            self.running.get(subject, 0),
        )

    @property
    def count(self) -> int:
        return len(self._said)


def _charges(before: Mapping[str, Used] | None, now: Mapping[str, Used]) -> Iterator[Charge]:
    for subject, used in now.items():
        if before is None:
            yield Charge(subject, 0, 0, used.requests_lacking, used.tokens_lacking)
            continue
        last = before.get(subject)
        if last is None or last.generation != used.generation:
            yield Charge(subject, used.requests, used.tokens)
        elif last.requests != used.requests or last.tokens != used.tokens:
            yield Charge(subject, used.requests - last.requests, used.tokens - last.tokens)
