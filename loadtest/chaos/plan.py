"""Which faults there are, and the order in which a seed lets them come."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What an answer may lose: nothing, or its connection.
WHOLE, CUT = "whole", "cut"


@dataclass(frozen=True, slots=True)
class Fault:
    """`holds_s` is how long it lasts, the least and the most; 0 where it is over at once.

    `answers` says what it may do to answers under way: one that is cut has a connection that broke, and what
    came before is still right. `of` names what it needs: a part of the stack that may be missing.
    """

    name: str
    what: str
    holds_s: tuple[float, float] = (0.0, 0.0)
    answers: str = WHOLE
    of: str = ""


FROZEN_S = (2.0, 8.0)
AWAY_S = (2.0, 6.0)
CATALOGUE = {
    fault.name: fault
    for fault in (
        Fault("kill-triton", "a Triton server is killed"),
        Fault("freeze-triton", "a Triton server is stopped, and goes on later", FROZEN_S),
        Fault("kill-model", "a model's process in Triton is killed"),
        Fault("freeze-model", "a model's process in Triton is stopped, and goes on later", FROZEN_S),
        Fault("kill-engine", "an engine process is killed"),
        Fault("freeze-engine", "an engine process is stopped, and goes on later", FROZEN_S),
        Fault("kill-router", "a router is killed", answers=CUT),
        Fault("freeze-router", "a router is stopped, and goes on later", FROZEN_S),
        Fault("drop-clients", "all connections of clients to a router break", answers=CUT),
        Fault("delay-clients", "what clients and a router send each other comes late", AWAY_S),
        Fault("drop-triton", "the connections of a router to a Triton server break"),
        Fault("delay-triton", "what a router and a Triton server send each other comes late", AWAY_S),
        Fault("full-disk", "no file of a router may grow", AWAY_S),
        Fault("kill-postgres", "PostgreSQL is killed, and started again later", AWAY_S, of="postgres"),
        Fault("freeze-postgres", "PostgreSQL is stopped, and goes on later", AWAY_S, of="postgres"),
        Fault("kill-redis", "Redis is killed, and started again later", AWAY_S, of="redis"),
        Fault("freeze-redis", "Redis is stopped, and goes on later", AWAY_S, of="redis"),
        Fault("skew-clock", "the clock of a router jumps by an hour, and back", AWAY_S, of="faketime"),
        Fault("broken-release", "a release that cannot be loaded is to be loaded"),
        Fault("flood", "one tenant sends ten times as much as all others", AWAY_S),
    )
}


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault under load. `at_s` is when it strikes, since the load began; `chance` chooses its victim."""

    number: int
    fault: Fault
    at_s: float
    holds_s: float
    chance: float

    def one_of(self, count: int) -> int:
        return min(int(self.chance * count), count - 1)


def chosen(names: Sequence[str]) -> list[Fault]:
    """All of them if none are named; raises ValueError."""
    for name in names:
        if name not in CATALOGUE:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(CATALOGUE)}")
    return [CATALOGUE[name] for name in names or CATALOGUE]


def episodes(seed: int, faults: Sequence[Fault], load_s: float) -> Iterator[Episode]:
    """Without an end: rounds of all faults, each round in another order."""
    chance = random.Random(seed)
    number = 0
    while faults:
        for fault in chance.sample(faults, len(faults)):
            number += 1
            at_s = chance.uniform(0.15, 0.6) * load_s
            yield Episode(number, fault, at_s, chance.uniform(*fault.holds_s), chance.random())
