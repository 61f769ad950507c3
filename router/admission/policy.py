"""How requests are let in to one release: the interface of Dispatcher and FirstCome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.admission.demand import Capacity, Demand, Progress, Refused
    from router.admission.place import Place
    from router.admission.signals import Signals


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
