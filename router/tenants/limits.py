"""Token buckets, budgets and the limits made of them: what may start now, and how long to wait if not.

What a bucket has granted since it was full never exceeds burst + rate x time. A reservation takes the most a
request could use, settling gives back what it did not, and what it used beyond that is a debt that later ones
wait for. Levels are whole numbers of tokens times nanoseconds per minute, so nothing
is ever rounded up. Time comes in as monotonic nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from router.tenants.budget import RENEW_S, USABLE_S, LeaseAnswer, LeaseAsk
from router.tenants.shared_usage import Charge, Used

if TYPE_CHECKING:
    from router.core.tenant import Limits

NS_PER_S = 1_000_000_000
NS_PER_MIN = 60 * NS_PER_S
# Nobody knows when a running request ends; a second is long enough not to be a busy loop.
_CONCURRENCY_WAIT_NS = NS_PER_S
# What the store said of a budget that was too small holds for so long.
_ASK_AGAIN_S = 2.0


class Limit(Enum):
    """Which limit stood in the way; `LEASE` only means that the store has to be asked first."""

    REQUESTS = "requests per minute"
    TOKENS = "tokens per minute"
    CONCURRENCY = "concurrent requests"
    BUDGET = "monthly budget"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not now; `wait_ns` is None where waiting does not help before the limit itself changes."""

    limit: Limit
    subject: str
    wait_ns: int | None

    @property
    def retry_after_s(self) -> float | None:
        return None if self.wait_ns is None else self.wait_ns / NS_PER_S


class Bucket:
    """Fills at `rate_per_min` up to `burst`; full at the start."""

    __slots__ = ("_at_ns", "burst", "level", "rate_per_min")

    def __init__(self, rate_per_min: int, burst: int, now_ns: int) -> None:
        self.rate_per_min = rate_per_min
        self.burst = burst
        self.level = burst * NS_PER_MIN
        self._at_ns = now_ns

    def wait_ns(self, amount: int, now_ns: int) -> int | None:
        """How long until this amount can be taken: 0 is now, None is never."""
        if now_ns > self._at_ns:
            filled = self.level + (now_ns - self._at_ns) * self.rate_per_min
            full = self.burst * NS_PER_MIN
            self.level = filled if filled < full else full
            self._at_ns = now_ns
        missing = amount * NS_PER_MIN - self.level
        if missing <= 0:
            return 0
        if amount > self.burst or not self.rate_per_min:
            return None
        return -(-missing // self.rate_per_min)

    def take(self, amount: int) -> None:
        """Right after `wait_ns` said 0, or for a debt; a negative amount gives back, up to the burst."""
        self.level = min(self.level - amount * NS_PER_MIN, self.burst * NS_PER_MIN)

    def left(self, now_ns: int) -> int:
        """What is in it, rounded down; less than 0 is a debt."""
        self.wait_ns(0, now_ns)
        return self.level // NS_PER_MIN

    def leave(self, amount: int, now_ns: int) -> None:
        """No more than that, which is what another one for the same limit has."""
        self.wait_ns(0, now_ns)
        self.level = min(self.level, amount * NS_PER_MIN)

    def is_full(self, now_ns: int) -> bool:
        return self.wait_ns(self.burst, now_ns) == 0

    def change(self, rate_per_min: int, burst: int, now_ns: int) -> None:
        """Keeps what is left: nobody gains a full bucket by a change of limits."""
        self.wait_ns(0, now_ns)
        self.rate_per_min, self.burst = rate_per_min, burst
        self.level = min(self.level, burst * NS_PER_MIN)

    def check(self) -> None:
        assert self.level <= self.burst * NS_PER_MIN, "more than a full bucket"


def _bucket(old: Bucket | None, rate_per_min: int | None, burst: int | None, now_ns: int) -> Bucket | None:
    if rate_per_min is None:
        return None
    burst = rate_per_min if burst is None else burst
    if old is None:
        return Bucket(rate_per_min, burst, now_ns)
    old.change(rate_per_min, burst, now_ns)
    return old


class Allowance:
    """What one router may still spend of a subject's budget this month; belongs to the event loop."""

    __slots__ = (
        "_asked_in_vain_ns",
        "_idle",
        "_renew_ns",
        "_usable_ns",
        "_vain_need",
        "budget",
        "free",
        "lease",
        "month",
        "reserved",
        "subject",
    )

    def __init__(self, subject: str, budget: int) -> None:
        self.subject = subject
        self.budget = budget
        self.month = ""
        self.lease = 0  # counts leases: what belongs to an older one is not given back to a newer
        self.free = 0
        self.reserved = 0
        self._usable_ns = self._renew_ns = 0
        self._asked_in_vain_ns = 0
        self._vain_need = 0
        self._idle = False

    def change(self, budget: int) -> None:
        self.budget = budget
        self._asked_in_vain_ns = 0

    def covers(self, cost: int, now_ns: int, month: str) -> bool:
        return cost <= self.free and now_ns < self._usable_ns and month == self.month

    def is_spent(self, cost: int, now_ns: int, month: str) -> bool:
        """Whether the store answered recently that less than this is left."""
        return month == self.month and now_ns < self._asked_in_vain_ns and cost - self.free >= self._vain_need

    def take(self, cost: int) -> int:
        """Reserves; the answer names the lease and goes back with `end`."""
        self._idle = False
        self.free -= cost
        self.reserved += cost
        return self.lease

    def end(self, lease: int, reserved: int, spent: int) -> None:
        """One reservation is over; what it did not spend is free again, if its lease still stands."""
        self.reserved -= reserved
        if lease == self.lease:
            self.free += reserved - spent

    def ask(self, cost: int, month: str) -> LeaseAsk:
        """What to ask the store for, so that a request of this cost can start."""
        need = max(cost - self.free, 0) if month == self.month else cost
        return LeaseAsk(self.subject, month, self.budget, need, cost)

    def granted(self, ask: LeaseAsk, answer: LeaseAnswer, asked_ns: int) -> None:
        """The store's answer; `asked_ns` is from before it was asked."""
        if not answer.continued or ask.month != self.month:
            self.lease += 1
            self.free = 0
        self.month = ask.month
        self.free += answer.amount
        self._usable_ns = asked_ns + int(USABLE_S * NS_PER_S)
        self._renew_ns = asked_ns + int(RENEW_S * NS_PER_S)
        if answer.amount < (ask.need if answer.continued else ask.cost):
            self._asked_in_vain_ns = asked_ns + int(_ASK_AGAIN_S * NS_PER_S)
            self._vain_need = ask.need if answer.continued else ask.cost

    def upkeep(self, now_ns: int) -> LeaseAsk | None:
        """Now and then: extends a lease in use, returns one that nobody used since the last time."""
        if not self.month or now_ns < self._renew_ns:
            return None
        if self._idle and not self.reserved:
            return self.give_back()
        self._idle = True
        self._renew_ns = now_ns + int(RENEW_S * NS_PER_S)
        return LeaseAsk(self.subject, self.month, self.budget)

    def give_back(self) -> LeaseAsk | None:
        """Lets go of all that is free: from here on it can be spent elsewhere only."""
        amount, self.free = max(self.free, 0), 0
        month, self.month = self.month, ""
        self.lease += 1
        return LeaseAsk(self.subject, month, self.budget, give_back=amount) if amount else None

    def check(self) -> None:
        assert self.reserved >= 0, f"{self.subject}: {self.reserved} reserved"


class LimitSet:
    """All limits of one subject, an organisation or a key.

    What it has taken since it is limited by something that other routers take of too is for those with one
    for the same subject; `elsewhere` is what runs there.
    """

    __slots__ = (
        "allowance",
        "elsewhere",
        "is_limited",
        "limited_ns",
        "limits",
        "requests",
        "running",
        "subject",
        "taken_requests",
        "taken_tokens",
        "tokens",
    )

    def __init__(self, subject: str, limits: Limits, now_ns: int) -> None:
        self.subject = subject
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.allowance: Allowance | None = None
        self.running = self.elsewhere = 0
        self.is_limited = False
        self.limited_ns = now_ns
        self.taken_requests = self.taken_tokens = 0
        self.configure(limits, now_ns)

    def configure(self, limits: Limits, now_ns: int) -> None:
        self.limits = limits
        self.requests = _bucket(self.requests, limits.requests_per_min, limits.request_burst, now_ns)
        self.tokens = _bucket(self.tokens, limits.tokens_per_min, limits.token_burst, now_ns)
        most, was_limited = limits.concurrent_requests, self.is_limited
        self.is_limited = not (self.requests is None and self.tokens is None and most is None)
        if self.is_limited and not was_limited:  # what was taken before is nobody's debt
            self.limited_ns, self.taken_requests, self.taken_tokens = now_ns, 0, 0
        if limits.monthly_budget is None or not limits.budget_is_hard:
            self.allowance = None
        elif self.allowance is None:
            self.allowance = Allowance(self.subject, limits.monthly_budget)
        else:
            self.allowance.change(limits.monthly_budget)

    def refusal(self, tokens: int, cost: int, now_ns: int, month: str, requests: int = 1) -> Refusal | None:
        """Whether anything stands in the way; takes nothing. Of several, the one to wait for longest."""
        worst = self.rate_refusal(requests, tokens, now_ns)
        allowance = self.allowance
        if worst is None and allowance is not None and not allowance.covers(cost, now_ns, month):
            gone = allowance.is_spent(cost, now_ns, month)
            worst = Refusal(Limit.BUDGET if gone else Limit.LEASE, self.subject, None if gone else 0)
        return worst

    def rate_refusal(self, requests: int, tokens: int | None, now_ns: int) -> Refusal | None:
        """As `refusal`, budgets left out; with None for tokens, for what asks no model."""
        worst: Refusal | None = None
        if requests and self.requests is not None and (wait := self.requests.wait_ns(requests, now_ns)) != 0:
            worst = Refusal(Limit.REQUESTS, self.subject, wait)
        if tokens is None:
            return worst
        bucket = self.tokens
        # Where nothing is to be taken, what was in it the last time is enough.
        if bucket is not None and (tokens or bucket.level < 0):
            wait = bucket.wait_ns(tokens, now_ns)
            if wait != 0:
                worst = longer(worst, Refusal(Limit.TOKENS, self.subject, wait))
        most = self.limits.concurrent_requests
        if most is not None and self.running + self.elsewhere >= most:
            worst = longer(worst, Refusal(Limit.CONCURRENCY, self.subject, _CONCURRENCY_WAIT_NS))
        return worst

    def count(self, requests: int) -> None:
        """Right after `rate_refusal` found none; a negative number is given back."""
        self.taken_requests += requests
        if self.requests is not None:
            self.requests.take(requests)

    def take(self, tokens: int, cost: int, requests: int = 1) -> tuple[Allowance, int] | None:
        """Right after `refusal` found none; answers which lease pays, if one has to."""
        self.running += 1
        self.taken_requests += requests
        self.taken_tokens += tokens
        # As Bucket.take does: right after `refusal`, so there is enough in both.
        if self.requests is not None:
            self.requests.level -= requests * NS_PER_MIN
        if self.tokens is not None:
            self.tokens.level -= tokens * NS_PER_MIN
        allowance = self.allowance
        if allowance is None:
            return None
        # As Allowance.take does.
        allowance._idle = False
        allowance.free -= cost
        allowance.reserved += cost
        return allowance, allowance.lease

    def end(self, requests_back: int, tokens_back: int) -> None:
        self.running -= 1
        self.taken_tokens -= tokens_back
        if requests_back:
            self.count(-requests_back)
        if self.tokens is not None and tokens_back:
            self.tokens.take(-tokens_back)

    def used(self, now_ns: int) -> Used:
        return Used(
            self.limited_ns,
            self.taken_requests,
            self.taken_tokens,
            None if self.requests is None else self.requests.left(now_ns),
            None if self.tokens is None else self.tokens.left(now_ns),
            self.running,
        )

    def charge(self, charge: Charge, now_ns: int) -> None:
        """What other routers took of the same limits."""
        for bucket, amount, left in (
            (self.requests, charge.requests, charge.requests_left),
            (self.tokens, charge.tokens, charge.tokens_left),
        ):
            if bucket is not None:
                if left is not None:
                    bucket.leave(left, now_ns)
                bucket.take(amount)

    def is_as_new(self, now_ns: int) -> bool:
        """Whether one that is made now would be the same; with a budget there may be a lease to come."""
        buckets = (self.requests, self.tokens)
        is_full = all(bucket is None or bucket.is_full(now_ns) for bucket in buckets)
        return is_full and not self.running and self.allowance is None

    def check(self) -> None:
        assert self.running >= 0, f"{self.subject}: {self.running} requests running"
        for bucket in (self.requests, self.tokens):
            if bucket is not None:
                bucket.check()
        if self.allowance is not None:
            self.allowance.check()


def longer(one: Refusal | None, other: Refusal | None) -> Refusal | None:
    if one is None or other is None:
        return other if one is None else one
    if one.wait_ns is None or (other.wait_ns is not None and one.wait_ns >= other.wait_ns):
        return one
    return other
