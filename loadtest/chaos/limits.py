"""How long a fault may be felt: seconds that the design promises, and what this run takes undisturbed.

A machine that is shared is slow now and quick later. So what a start or a token takes is measured before the
first fault, and counts for more while more wants to run on each processor than did then.
"""

from __future__ import annotations

from dataclasses import dataclass

# Until what hangs is found, given up and done again elsewhere.
FOUND_WITHIN_S = 10.0
_SILENCES = 10.0


@dataclass(frozen=True, slots=True)
class Calm:
    """What the undisturbed stack took to start, the longest silence in its answers, and how many processes
    wanted to run on each processor meanwhile."""

    start_s: float
    silence_s: float
    crowding: float = 1.0

    def slower(self, crowding: float) -> float:
        """How many times slower than then it may be now."""
        return max(1.0, crowding / max(1.0, self.crowding))


def rest_limit_s(calm: Calm, promised_s: float, crowding: float) -> float:
    """Until everything is there and at rest: what was killed takes a start."""
    return promised_s + calm.start_s * calm.slower(crowding)


def silence_limit_s(calm: Calm, held_s: float, crowding: float) -> float:
    """Until the next token of an answer, after a fault that held so long."""
    return FOUND_WITHIN_S + held_s + _SILENCES * calm.silence_s * calm.slower(crowding)
