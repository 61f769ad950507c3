"""Stands in for admission where a test is not about it: everybody's turn comes at once."""

from __future__ import annotations

from typing import cast

from router.admission.demand import Need
from router.admission.gates import Gates
from router.core.record import Record


class FreeTurn:
    is_waiting = False
    is_wanted = False
    weight = 0.0
    slots = 64

    def heard(self, now_s: float) -> None:
        pass

    def end(self, finished: bool) -> None:
        pass


class OpenGate:
    def offer(self, record: Record, need: Need) -> FreeTurn:
        return FreeTurn()


class OpenGates:
    def __getitem__(self, release: tuple[str, str]) -> OpenGate:
        return OpenGate()

    def has_room(self, model: str, *releases: str) -> bool:
        return True

    def drain(self) -> None:
        pass

    @property
    def as_gates(self) -> Gates:
        return cast("Gates", self)
