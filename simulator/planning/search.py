"""The cheapest fleet: every kind of replica is tried on the traffic, and what may be lost is added."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import ceil
from multiprocessing import get_context
from typing import TYPE_CHECKING

from simulator.planning.capacity import Capacity, CapacitySearch, bound_per_s
from simulator.planning.wish import GPUS_OF_HOST, Survives

if TYPE_CHECKING:
    from simulator.planning.profiles import Profile
    from simulator.planning.wish import Wish

# Kinds whose arithmetic alone costs so many times as much as the best one found are not simulated.
_HOPELESS = 2.0


class NoFleet(ValueError):
    """No replica keeps the objectives; the message says which were tried."""


@dataclass(frozen=True)
class Choice:
    """`needed` replicas do the work of the peak, `replicas` are there when something is lost, too."""

    profile: Profile
    capacity: Capacity
    needed: int
    replicas: int
    dollars_per_h: float
    dollars_per_million: float
    dollars_per_million_out: float

    @property
    def gpus(self) -> int:
        return self.replicas * self.profile.tensor_parallel

    def margin(self, peak_per_s: float) -> float:
        """How much more than the peak it could serve while nothing is lost."""
        return self.replicas * self.capacity.per_s / peak_per_s - 1


@dataclass(frozen=True)
class Plan:
    """The choices from the cheapest on; the first is the plan."""

    wish: Wish
    choices: tuple[Choice, ...]
    hopeless: tuple[Profile, ...]

    @property
    def best(self) -> Choice:
        return self.choices[0]


def with_spare(needed: int, wish: Wish, parallel: int) -> int:
    """So many replicas that `needed` are left when what may be lost is lost."""
    if wish.survives is Survives.NOTHING:
        return needed
    if wish.survives is Survives.REPLICA:
        return needed + 1
    if wish.survives is Survives.HOST or wish.zones < 2:
        return needed + max(GPUS_OF_HOST // parallel, 1)
    return ceil(needed / (wish.zones - 1)) * wish.zones


def priced(wish: Wish, profile: Profile, capacity: Capacity) -> Choice | None:
    """None where even a lone request misses the objectives."""
    if capacity.per_s <= 0:
        return None
    needed = max(ceil(wish.traffic.peak_per_s / capacity.per_s - 1e-9), 1)
    replicas = with_spare(needed, wish, profile.tensor_parallel)
    per_h = replicas * profile.tensor_parallel * wish.prices[profile.gpu]
    traffic = wish.traffic
    requests_per_h = 3600 * traffic.mean_per_s
    tokens = requests_per_h * (traffic.prompt_tokens + traffic.output_tokens)
    return Choice(
        profile,
        capacity,
        needed,
        replicas,
        per_h,
        1e6 * per_h / tokens,
        1e6 * per_h / (requests_per_h * traffic.output_tokens),
    )


def candidates(wish: Wish, profiles: Sequence[Profile]) -> list[Profile]:
    return [
        each
        for each in profiles
        if each.model == wish.model
        and each.gpu in wish.prices
        and (not wish.precisions or each.precision in wish.precisions)
    ]


def least_dollars(wish: Wish, profile: Profile) -> float:
    """An hour of it at least, if batches were always full."""
    traffic = wish.traffic
    bound = bound_per_s(profile.cost, traffic.prompt_tokens, traffic.output_tokens, profile.even_context)
    return traffic.peak_per_s / bound * profile.tensor_parallel * wish.prices[profile.gpu]


def find(wish: Wish, profiles: Sequence[Profile], processes: int = 1) -> Plan:
    """Raises NoFleet."""
    tried = sorted(candidates(wish, profiles), key=lambda each: least_dollars(wish, each))
    if not tried:
        raise NoFleet(f"{wish.model}: no profile for {', '.join(sorted(wish.prices))}")
    limit = _HOPELESS * least_dollars(wish, tried[0])
    hopeful = [each for each in tried if least_dollars(wish, each) <= limit]
    capacities = _capacities(wish, hopeful, processes)
    found = [priced(wish, profile, each) for profile, each in zip(hopeful, capacities, strict=True)]
    choices = sorted((each for each in found if each is not None), key=lambda each: each.dollars_per_h)
    if not choices:
        names = ", ".join(each.name for each in hopeful)
        raise NoFleet(f"{wish.model}: no replica keeps these objectives; tried {names}")
    return Plan(wish, tuple(choices), tuple(each for each in tried if each not in hopeful))


def _capacities(wish: Wish, profiles: Sequence[Profile], processes: int) -> list[Capacity]:
    search = CapacitySearch(wish.traffic.trace, wish.objectives, wish.goal)
    if processes <= 1 or len(profiles) < 2:
        return [search.of(each) for each in profiles]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(search.of, profiles))
