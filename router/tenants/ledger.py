"""Reserves before a request is dispatched, settles when it has ended: for organisation and key at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.tenants.limits import NS_PER_MIN, Limit, LimitSet, Refusal, longer
from router.tenants.shared_usage import Charge, Others, Used

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.core.tenant import Caller, Limits, Price
    from router.tenants.budget import LeaseAnswer, LeaseAsk


_TOKENS_PER_PRICE = 1_000_000


def cost_of(price: Price | None, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
    """Micro-dollars of one request, rounded up once; cached tokens are part of the prompt's."""
    if price is None:
        return 0
    exact = (
        (prompt_tokens - cached_tokens) * price.prompt
        + cached_tokens * price.cached_prompt
        + completion_tokens * price.completion
    )
    return -(-exact // _TOKENS_PER_PRICE)


class Reservation:
    """What one request holds of its limits; given back exactly once, by `settle` or by `cancel`."""

    __slots__ = ("_cost", "_leases", "_limit_sets", "_requests", "_tokens", "is_open")

    def __init__(
        self, limit_sets: tuple[LimitSet, LimitSet], tokens: int, cost: int, requests: int = 1
    ) -> None:
        self._limit_sets = limit_sets
        self._tokens = tokens
        self._cost = cost
        self._requests = requests
        self.is_open = True
        self._leases = (
            limit_sets[0].take(tokens, cost, requests),
            limit_sets[1].take(tokens, cost, requests),
        )

    def settle(self, tokens: int, cost: int) -> None:
        """The request was dispatched and used this much: less is refunded, more is a debt."""
        self._end(0, tokens, cost)

    def cancel(self) -> None:
        """The request was never dispatched: nothing that was reserved counts."""
        self._end(self._requests, 0, 0)

    def _end(self, requests_back: int, tokens: int, cost: int) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for limit_set, lease in zip(self._limit_sets, self._leases, strict=True):
            limit_set.end(requests_back, self._tokens - tokens)
            if lease is not None:
                allowance, number = lease
                allowance.end(number, self._cost, cost)


class Ledger:
    """The limits of all callers of this process. Used by the event loop alone, so that it needs no locks."""

    def __init__(self) -> None:
        self._limit_sets: dict[str, LimitSet] = {}
        self._others: Others | None = None

    def foresee(self, caller: Caller, tokens: int | None, now_ns: int) -> Refusal | None:
        """What `enter` would say now; counts nothing."""
        first, second = self._limit_sets_of(caller, now_ns)
        return longer(first.rate_refusal(1, tokens, now_ns), second.rate_refusal(1, tokens, now_ns))

    def enter(self, caller: Caller, tokens: int | None, now_ns: int) -> Refusal | None:
        """Counts a request that has just come, unless it is refused.

        `tokens` are the fewest that it can use, None where it asks no model.
        """
        of_organisation, of_key = self._limit_sets_of(caller, now_ns)
        first = of_organisation.rate_refusal(1, tokens, now_ns)
        second = of_key.rate_refusal(1, tokens, now_ns)
        if first is not None or second is not None:
            return longer(first, second)
        # As LimitSet.count does; each is full enough, so that nothing is cut off.
        of_organisation.taken_requests += 1
        of_key.taken_requests += 1
        if of_organisation.requests is not None:
            of_organisation.requests.level -= NS_PER_MIN
        if of_key.requests is not None:
            of_key.requests.level -= NS_PER_MIN
        return None

    def uncount(self, caller: Caller, now_ns: int) -> None:
        """The request that was counted last was refused for no fault of its caller."""
        for each in self._limit_sets_of(caller, now_ns):
            each.count(-1)

    def enter_alone(self, subject: str, limits: Limits, now_ns: int) -> Refusal | None:
        """As `enter`, for a subject that is neither an organisation nor a key."""
        limit_set = self._limit_set(subject, limits, now_ns)
        refusal = limit_set.rate_refusal(1, None, now_ns)
        if refusal is None:
            limit_set.count(1)
        return refusal

    def reserve(
        self, caller: Caller, tokens: int, cost: int, now_ns: int, month: str, requests: int = 1
    ) -> Reservation | Refusal:
        """All limits or nothing; `tokens` and `cost` are the most that the request can use.

        `requests` is 0 for one that was counted when it came. A refusal by `Limit.LEASE` means: send
        `asks_for` to the store, apply the answers, and try again.
        """
        of_organisation, of_key = both = self._limit_sets_of(caller, now_ns)
        first = of_organisation.rate_refusal(requests, tokens, now_ns)
        second = of_key.rate_refusal(requests, tokens, now_ns)
        funds, purse = of_organisation.allowance, of_key.allowance
        if (
            first is second is None
            and (funds is None or funds.covers(cost, now_ns, month))
            and (purse is None or purse.covers(cost, now_ns, month))
        ):
            return Reservation(both, tokens, cost, requests)
        refusal = longer(*(each.refusal(tokens, cost, now_ns, month, requests) for each in both))
        assert refusal is not None
        return refusal

    def _limit_sets_of(self, caller: Caller, now_ns: int) -> tuple[LimitSet, LimitSet]:
        of_organisation = self._limit_sets.get(caller.organisation.id)
        if of_organisation is None or of_organisation.limits is not caller.organisation_limits:
            of_organisation = self._limit_set(caller.organisation.id, caller.organisation_limits, now_ns)
        of_key = self._limit_sets.get(caller.key.id)
        if of_key is None or of_key.limits is not caller.key_limits:
            of_key = self._limit_set(caller.key.id, caller.key_limits, now_ns)
        return of_organisation, of_key

    def asks_for(self, caller: Caller, cost: int, now_ns: int, month: str) -> list[LeaseAsk]:
        """What the store must lease before a request of this cost can start."""
        both = (self._limit_sets.get(caller.organisation.id), self._limit_sets.get(caller.key.id))
        return [
            each.allowance.ask(cost, month)
            for each in both
            if each is not None and each.allowance is not None
            if not each.allowance.covers(cost, now_ns, month)
            and not each.allowance.is_spent(cost, now_ns, month)
        ]

    def granted(self, ask: LeaseAsk, answer: LeaseAnswer, asked_ns: int) -> None:
        limit_set = self._limit_sets.get(ask.subject)
        if limit_set is not None and limit_set.allowance is not None:
            limit_set.allowance.granted(ask, answer, asked_ns)

    def upkeep(self, now_ns: int) -> list[LeaseAsk]:
        """Leases to extend and to return; what is to be returned is no longer spent from.

        Forgets who has not called for a while: of all keys there ever were, those in use are few.
        """
        for subject in [each.subject for each in self._limit_sets.values() if each.is_as_new(now_ns)]:
            del self._limit_sets[subject]
        leased = (each.allowance for each in self._limit_sets.values() if each.allowance is not None)
        asks = (allowance.upkeep(now_ns) for allowance in leased)
        return [ask for ask in asks if ask is not None]

    # What several routers share

    def used(self, now_ns: int) -> dict[str, Used]:
        """By subject, of those that are limited and in use: what other routers are to know."""
        return {each.subject: each.used(now_ns) for each in self._limit_sets.values() if each.is_limited}

    def share(self, others: Others | None, charges: Iterable[Charge], now_ns: int) -> None:
        """Others took this much since they were last heard; None: from now on this router counts alone."""
        self._others = others
        for charge in charges:
            if (limit_set := self._limit_sets.get(charge.subject)) is not None:
                limit_set.charge(charge, now_ns)
        running = {} if others is None else others.running
        for limit_set in self._limit_sets.values():
            limit_set.elsewhere = running.get(limit_set.subject, 0)

    def __len__(self) -> int:
        return len(self._limit_sets)

    def running(self, subject: str) -> int:
        limit_set = self._limit_sets.get(subject)
        return 0 if limit_set is None else limit_set.running

    def check(self) -> None:
        for limit_set in self._limit_sets.values():
            limit_set.check()

    def _limit_set(self, subject: str, limits: Limits, now_ns: int) -> LimitSet:
        limit_set = self._limit_sets.get(subject)
        if limit_set is None:
            limit_set = self._limit_sets[subject] = LimitSet(subject, limits, now_ns)
            if self._others is not None:
                elsewhere = self._others.of(subject)
                limit_set.elsewhere = elsewhere.running
                left = (elsewhere.requests_left, elsewhere.tokens_left)
                limit_set.charge(Charge(subject, 0, 0, *left), now_ns)
        elif limit_set.limits is not limits and limit_set.limits != limits:
            limit_set.configure(limits, now_ns)
        return limit_set


def must_ask_the_store(answer: Reservation | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.limit is Limit.LEASE
