"""Which faults there are, and the order in which a seed lets them come."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """`holds_s` is how long it lasts, the least and the most; 0 where it is over at once.

    `cuts`: it breaks connections of clients, so answers may end early, with what came before still right.
    `on_replica`: it takes a replica away, or all that one router has of it. `of` names what it needs: a part
    of the stack that may be missing.
    """

    name: str
    what: str
    holds_s: tuple[float, float] = (0.0, 0.0)
    cuts: bool = False
    on_replica: bool = False
    of: str = ""


FLOODING = "flood"  # the fault, and the tenant that does it
FROZEN_S = (2.0, 8.0)
AWAY_S = (2.0, 6.0)
CATALOGUE = {
    fault.name: fault
    for fault in (
        Fault("kill-triton", "a Triton server is killed", on_replica=True),
        Fault(
            "freeze-triton",
            "a Triton server is frozen (SIGSTOP), and resumed later",
            FROZEN_S,
            on_replica=True,
        ),
        Fault("kill-model", "a model's process in Triton is killed", on_replica=True),
        Fault(
            "freeze-model",
            "a model's process in Triton is frozen, and resumed later",
            FROZEN_S,
            on_replica=True,
        ),
        Fault("kill-engine", "an engine process is killed", on_replica=True),
        Fault("freeze-engine", "an engine process is frozen, and resumed later", FROZEN_S, on_replica=True),
        Fault("kill-router", "a router is killed", cuts=True),
        Fault("freeze-router", "a router is frozen, and resumed later", FROZEN_S),
        Fault("drop-clients", "all client connections to a router are cut", cuts=True),
        Fault("delay-clients", "traffic between clients and a router is delayed", AWAY_S),
        Fault("drop-triton", "the connections of a router to a Triton server are cut", on_replica=True),
        Fault(
            "delay-triton",
            "traffic between a router and a Triton server is delayed",
            AWAY_S,
            on_replica=True,
        ),
        Fault("full-disk", "a router's files cannot grow, as on a full disk", AWAY_S),
        Fault("kill-postgres", "PostgreSQL is killed, and started again later", AWAY_S, of="postgres"),
        Fault("freeze-postgres", "PostgreSQL is frozen, and resumed later", AWAY_S, of="postgres"),
        Fault("kill-redis", "Redis is killed, and started again later", AWAY_S, of="redis"),
        Fault("freeze-redis", "Redis is frozen, and resumed later", AWAY_S, of="redis"),
        Fault("skew-clock", "the clock of a router jumps by an hour, and back", AWAY_S, of="faketime"),
        Fault("broken-release", "the load of a broken release is requested"),
        Fault(FLOODING, "one tenant sends ten times as much as all others", AWAY_S),
    )
}


# Usage that no disk takes waits in memory, and goes with a router that is killed.
_NOT_TOGETHER = frozenset({"full-disk", "kill-router"})


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at a moment of the load, `at_s` since it began; `chance` chooses its victim."""

    fault: Fault
    at_s: float
    holds_s: float
    chance: float

    def one_of(self, count: int) -> int:
        return min(int(self.chance * count), count - 1)


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault under load, or two that overlap."""

    number: int
    strikes: tuple[Strike, ...]

    @property
    def name(self) -> str:
        return " + ".join(each.fault.name for each in self.strikes)

    @property
    def what(self) -> str:
        return "; ".join(each.fault.what for each in self.strikes)

    @property
    def over_s(self) -> float:
        return max(each.at_s + each.holds_s for each in self.strikes)

    @property
    def takes_all_replicas(self) -> bool:
        """Whether there may be none for a while."""
        return sum(each.fault.on_replica for each in self.strikes) > 1

    def may_lose_kept(self, has_redis: bool) -> bool:
        """Whether an answer with a key may be lost: it is where its router is, while Redis is away."""
        names = {each.fault.name for each in self.strikes}
        parts = {each.fault.of for each in self.strikes}
        return "kill-router" in names and (not has_redis or "redis" in parts)

    @property
    def may_cut(self) -> bool:
        """Whether answers may end early: with a connection, or because no replica is left."""
        return self.takes_all_replicas or any(each.fault.cuts for each in self.strikes)


def chosen(names: Sequence[str]) -> list[Fault]:
    """All of them if none are named; raises ValueError."""
    for name in names:
        if name not in CATALOGUE:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(CATALOGUE)}")
    return [CATALOGUE[name] for name in names or CATALOGUE]


def episodes(seed: int, faults: Sequence[Fault], load_s: float, pairs: float = 0.0) -> Iterator[Episode]:
    """Without an end: rounds of all faults, each in another order; a share of `pairs` comes with another."""
    chance = random.Random(seed)
    number = 0
    while faults:
        for fault in chance.sample(faults, len(faults)):
            number += 1
            together = [fault]
            if chance.random() < pairs:
                together += [each for each in (chance.choice(faults),) if _may_overlap(fault, each)]
            yield Episode(number, tuple(_strike(chance, each, load_s) for each in together))


def _may_overlap(one: Fault, other: Fault) -> bool:
    return one is not other and {one.name, other.name} != _NOT_TOGETHER


def _strike(chance: random.Random, fault: Fault, load_s: float) -> Strike:
    at_s = chance.uniform(0.15, 0.6) * load_s
    return Strike(fault, at_s, chance.uniform(*fault.holds_s), chance.random())
