"""How long a tenant rests between pieces of work, so that others have the processors: a decision.

In the long run each tenant works for its share of one processor. What it has worked beyond that is a debt
that time pays off; a small one is free, so that whoever comes now and then never rests.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of all processors, for the work of one tenant.
_PART = 0.1
_MOST_TENANTS = 1024


@dataclass(frozen=True, slots=True)
class _Debt:
    work_s: float
    at_s: float


class ProcessorShare:
    """`free_s` is the debt without a rest; what is not paid off by `most_rest_s` of rest is forgiven."""

    def __init__(self, share: float, free_s: float = 0.25, most_rest_s: float = 30.0) -> None:
        self._share = share
        self._free_s = free_s
        self._most_s = free_s + most_rest_s * share
        self._debts: dict[str, _Debt] = {}

    @classmethod
    def on(cls, cores: int) -> ProcessorShare:
        """A fifth of a processor where there are two, and no rests from ten on."""
        return cls(min(1.0, _PART * cores))

    @property
    def is_whole(self) -> bool:
        """Nobody ever rests: there are processors enough."""
        return self._share >= 1.0

    def rest_s(self, tenant: str, took_s: float, now_s: float) -> float:
        """How long a tenant rests after work that took so much time of a processor, and ended now."""
        # The time that it took pays for its own share.
        owed_s = self._owed_s(tenant, now_s - took_s) + took_s * (1 - self._share)
        owed_s = min(owed_s, self._most_s)
        if len(self._debts) >= _MOST_TENANTS:
            self._debts = {each: debt for each, debt in self._debts.items() if self._owed_s(each, now_s)}
        self._debts[tenant] = _Debt(owed_s, now_s)
        return max(0.0, owed_s - self._free_s) / self._share

    def _owed_s(self, tenant: str, now_s: float) -> float:
        debt = self._debts.get(tenant)
        return 0.0 if debt is None else max(0.0, debt.work_s - max(0.0, now_s - debt.at_s) * self._share)
