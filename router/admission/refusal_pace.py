"""Whoever comes back at once after a refusal is told the next one more slowly.

A refusal is cheap, but a client that asks again as soon as it is refused sends a thousand of them a second,
and together they take the processor from those who are served.
"""

from __future__ import annotations

AT_ONCE = 256  # refusals that a tenant is told without delay, however close together
PER_S = 20.0  # of which so many are forgotten
LONGEST_S = 1.0
_MOST_TENANTS = 10_000


class RefusalPace:
    """Knows no clock: times are seconds on whatever clock its caller has, and never go back."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, float]] = {}  # refusals that are not forgotten yet, and when

    def hold_s(self, tenant: str, retry_after_s: float | None, now_s: float) -> float:
        """So long the refusal that is about to be told is kept back: never beyond the time to retry."""
        told, at_s = self._told.get(tenant, (0.0, now_s))
        told = max(0.0, told - (now_s - at_s) * PER_S) + 1
        if len(self._told) >= _MOST_TENANTS:
            self._forget(now_s)
        self._told[tenant] = min(told, AT_ONCE + 1.0), now_s
        if told <= AT_ONCE:
            return 0.0
        return LONGEST_S if retry_after_s is None else min(retry_after_s, LONGEST_S)

    def _forget(self, now_s: float) -> None:
        self._told = {
            tenant: (told, at_s)
            for tenant, (told, at_s) in self._told.items()
            if told > (now_s - at_s) * PER_S
        }
