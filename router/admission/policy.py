"""How requests are let in to one release: the interface of Dispatcher and FirstCome."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.tiers import Tier
from router.admission.demand import Capacity, Place, PlaceState
from router.admission.signals import Signals

if TYPE_CHECKING:
    from router.admission.demand import Capacity, Demand, Place, Progress, Refused


class Policy(Protocol):
    """Knows no clock: times are seconds on whatever clock its caller has, and never go back."""

    def resize(self, capacity: Capacity) -> None:
        """What the open replicas can do from now on. Before the first call there is room for nobody."""

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> Place | Refused:
        """A place that waits (call `hand_on` next: its turn may have come already), or why there is none."""

    def hand_on(self, now_s: float) -> list[Place]:
        """Those that waited until now: without a refusal they run from now on, else they have ended."""

    def first_token(self, place: Place, now_s: float) -> None:
        """The first token of a running place is there. Without effect at any other time."""

    def end(self, place: Place, now_s: float, finished: bool = True) -> None:
        """Gives back all that the place holds, from whatever state, once; `finished`: with a whole answer."""

    def signals(self, now_s: float) -> Signals:
        """How it stands, for those who look."""

    def check(self) -> None:
        """Raises AssertionError where the books do not add up; for tests."""


EVERYTHING = -1


class FirstCome:
    """A plain cap with a queue: it neither prices nor refuses, and knows no tiers, tenants or deadlines.

    `places` is how many sequences may be under way: 0 for as many as the engine has, EVERYTHING (-1) for no
    limit at all. What alone wants more than that runs alone.
    """

    def __init__(self, places: int = 0) -> None:
        self._cap = places
        self._capacity = Capacity(replicas=0, places=0)
        self._waiting: OrderedDict[Place, None] = OrderedDict()
        self._running: dict[Place, None] = {}
        self._taken = 0

    def resize(self, capacity: Capacity) -> None:
        self._capacity = capacity

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> Place | Refused:
        place = Place(demand, progress, sequences=demand.sequences)
        self._waiting[place] = None
        return place

    def hand_on(self, now_s: float) -> list[Place]:
        begun = []
        while self._waiting:
            place = next(iter(self._waiting))
            if not self._has_room(place.sequences):
                break
            del self._waiting[place]
            self._running[place] = None
            self._taken += place.sequences
            place.state, place.begun_s = PlaceState.RUNNING, now_s
            begun.append(place)
        return begun

    def first_token(self, place: Place, now_s: float) -> None:
        if place.is_running and place.first_token_s is None:
            place.first_token_s = now_s

    def end(self, place: Place, now_s: float, finished: bool = True) -> None:
        if place.state is PlaceState.WAITING:
            del self._waiting[place]
        elif place.state is PlaceState.RUNNING:
            del self._running[place]
            self._taken -= place.sequences
        place.state = PlaceState.ENDED

    def signals(self, now_s: float) -> Signals:
        waiting = dict.fromkeys(Tier, 0)
        for place in self._waiting:
            waiting[place.demand.tier] += 1
        return Signals(
            drain_s=None,
            risk=dict.fromkeys(Tier, 0.0),
            waiting=waiting,
            running=len(self._running),
            kv_budget_tokens=self._capacity.kv_tokens,
            wanted_replicas=max(1, self._capacity.replicas),
        )

    def check(self) -> None:
        assert self._taken == sum(place.sequences for place in self._running)
        assert all(place.state is PlaceState.WAITING for place in self._waiting)
        assert all(place.state is PlaceState.RUNNING for place in self._running)

    def _has_room(self, sequences: int) -> bool:
        if self._cap == EVERYTHING:
            return True
        places = self._cap or self._capacity.places_here
        return self._taken + sequences <= places or (self._taken == 0 and places > 0)
