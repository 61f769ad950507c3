"""Who asks for little: decided by the work that tenants asked for of late, however many requests that is.

What is in flight says little of a tenant: on a slow machine the answers of one that asks once a second
overlap, and beside others all the more. So what each asks for is counted, in time of the engine.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

from .places import GUARANTEES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .places import Holder

# Beside up to so many tenants one may ask for twice its part before it gives way to others: whoever floods
# asks for more. Beside many it is hardly more than its part: of many there are always some above it.
_FEW_TENANTS = 4
# The weight of those who ask for little, beside others: enough to have what they ask for.
LIGHT_WEIGHT = 8.0
_WINDOW_S = 10.0
# Of what was asked for in less time than this, nobody can say how much it is a second.
_LEAST_S = 2.0
_LOOK_S = 0.25
# What those who ask for little may be ahead of what the engines can do, all together: in a surge their rates
# of the last seconds are still those of before.
_BURST_S = 0.5
_MOST_HOLDERS, _NOTHING = 256, 1e-4


def light_bounds(rates: Mapping[Holder, float], weights: Mapping[Holder, float]) -> list[float]:
    """Up to which rate for its weight a tenant of each tier is light; `rates` are in engines.

    That is its part of what its tier has, or up to twice that beside few, as long as all who ask for no more
    ask for no more than there is. Where nobody asks for more, nobody is light: there is none to give way.
    """
    asking = {holder: rate for holder, rate in rates.items() if rate >= _NOTHING}
    asked = [sum(rate for (tier, _), rate in asking.items() if tier == each) for each in Tier]
    bounds = []
    for tier in Tier:
        room = max(GUARANTEES[tier], 1.0 - (sum(asked) - asked[tier]))
        mine = sorted((asking[each] / weights[each], weights[each]) for each in asking if each[0] == tier)
        bounds.append(_bound(mine, room))
    is_any_heavy = any(rate > bounds[holder[0]] * weights[holder] for holder, rate in asking.items())
    return bounds if is_any_heavy else [0.0 for _ in Tier]


def _bound(asking: Sequence[tuple[float, float]], room: float) -> float:
    """Of tenants as their rate for their weight and the weight, those who ask for least first."""
    part = room / max(sum(weight for _, weight in asking), 1.0)
    most = min(part * (1.0 + min(_FEW_TENANTS / max(len(asking), 1), 1.0)), room)
    left, bound = room, 0.0
    for rate, weight in asking:
        left -= rate * weight
        if rate > most:
            break
        if left < 0.0:
            return bound
        bound = rate
    return most


class Asks:
    """What was asked for in the last seconds, faded; bounded however many tenants there are."""

    def __init__(self) -> None:
        self._sums: dict[Holder, tuple[float, float]] = {}  # in microseconds, and when that was
        self._weights: dict[Holder, float] = {}
        self._bounds = [0.0 for _ in Tier]
        self._whole_us = 1.0  # that the engines can do in a second
        self._burst_us = self._burst_at_s = 0.0
        self._looked_s = 0.0
        self._since_s = 0.0

    def __len__(self) -> int:
        return len(self._sums)

    def ask(self, holder: Holder, weight: float, work_us: float, engines: float | None, now_s: float) -> bool:
        """One more request; returns whether its tenant is light, with this one.

        `engines` are there for all; None while nobody knows how much work that is: then it is taken to be
        half of what is asked for.
        """
        is_new = holder not in self._sums
        if is_new:
            self._welcome(holder, now_s)
        before_us, at_s = self._sums[holder]
        self._sums[holder] = before_us * exp((at_s - now_s) / _WINDOW_S) + work_us, now_s
        self._weights[holder] = weight
        if is_new or now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            rates = {each: self._rate_us(each, now_s) for each in self._sums}
            self._whole_us = 1e6 * engines if engines else sum(rates.values()) / 2
            shares = {each: rate_us / self._whole_us for each, rate_us in rates.items()}
            self._bounds = light_bounds(shares, self._weights)
        bound_us = self._bounds[holder[0]] * weight * self._whole_us
        if bound_us <= 0.0 or self._rate_us(holder, now_s) > bound_us:
            return False
        return engines is None or self._has_room(work_us, now_s)

    def _has_room(self, work_us: float, now_s: float) -> bool:
        """For one more that is light: else all of them would wait for one another, and none be in time."""
        done_us = self._whole_us * (now_s - self._burst_at_s)
        self._burst_us, self._burst_at_s = max(self._burst_us - done_us, 0.0), now_s
        if self._burst_us > _BURST_S * self._whole_us:
            return False
        self._burst_us += work_us
        return True

    def reprice(self, times: float) -> None:
        """The same work is so many times what it was taken for."""
        self._sums = {each: (times * work_us, at_s) for each, (work_us, at_s) in self._sums.items()}
        self._looked_s = float("-inf")

    def _welcome(self, holder: Holder, now_s: float) -> None:
        if not self._sums:
            self._since_s = now_s
        if len(self._sums) >= _MOST_HOLDERS:
            least = sorted(self._sums, key=lambda each: self._rate_us(each, now_s))
            for other in least[: _MOST_HOLDERS // 2]:
                del self._sums[other], self._weights[other]
        self._sums[holder] = 0.0, now_s

    def _rate_us(self, holder: Holder, now_s: float) -> float:
        """A second."""
        work_us, at_s = self._sums[holder]
        seen_s = _WINDOW_S * (1.0 - exp(-max(now_s - self._since_s, _LEAST_S) / _WINDOW_S))
        return work_us * exp((at_s - now_s) / _WINDOW_S) / seen_s
