"""Decides whether a process that died is started again, and when: later each time, and not for ever."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


@dataclass
class RestartPolicy:
    """A process that lived long enough is trusted again; quick deaths in a row use up its chances."""

    quick_death_s: float = 60.0
    chances: int = 5
    quick_deaths: int = 0

    def delay_after_death(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start, or None when there is no point in another."""
        self.quick_deaths = self.quick_deaths + 1 if lived_s < self.quick_death_s else 1
        if self.quick_deaths > self.chances:
            return None
        return float(min(FIRST_DELAY_S * 2 ** (self.quick_deaths - 1), LONGEST_DELAY_S))
