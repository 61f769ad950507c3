"""Reserves before a request is dispatched, settles when it has ended: for organisation and key at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.tenants.limits import Gate, Limit, Refusal, longer
from router.tenants.shared_usage import Charge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.core.tenant import Caller, Limits
    from router.tenants.budget import LeaseAnswer, LeaseAsk
    from router.tenants.shared_usage import Others, Used


class Reservation:
    """What one request holds of its limits; given back exactly once, by `settle` or by `cancel`."""

    __slots__ = ("_cost", "_gates", "_leases", "_tokens", "is_open")

    def __init__(self, gates: tuple[Gate, Gate], tokens: int, cost: int) -> None:
        self._gates = gates
        self._tokens = tokens
        self._cost = cost
        self.is_open = True
        self._leases = tuple(gate.take(tokens, cost) for gate in gates)

    def settle(self, tokens: int, cost: int) -> None:
        """The request was dispatched and used this much: less is refunded, more is a debt."""
        self._end(0, tokens, cost)

    def cancel(self) -> None:
        """The request was never dispatched: it counts for nothing."""
        self._end(1, 0, 0)

    def _end(self, requests_back: int, tokens: int, cost: int) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for gate, lease in zip(self._gates, self._leases, strict=True):
            gate.end(requests_back, self._tokens - tokens)
            if lease is not None:
                allowance, number = lease
                allowance.end(number, self._cost, cost)


class Ledger:
    """The limits of all callers of this process. Used by the event loop alone, so that it needs no locks."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._others: Others | None = None

    def reserve(
        self, caller: Caller, tokens: int, cost: int, now_ns: int, month: str
    ) -> Reservation | Refusal:
        """All limits or nothing; `tokens` and `cost` are the most that the request can use.

        A refusal by `Limit.LEASE` means: send `asks_for` to the store, apply the answers, and try again.
        """
        of_organisation = self._gate(caller.organisation.id, caller.organisation_limits, now_ns)
        of_key = self._gate(caller.key.id, caller.key_limits, now_ns)
        refusal = longer(
            of_organisation.refusal(tokens, cost, now_ns, month), of_key.refusal(tokens, cost, now_ns, month)
        )
        if refusal is not None:
            return refusal
        return Reservation((of_organisation, of_key), tokens, cost)

    def asks_for(self, caller: Caller, cost: int, now_ns: int, month: str) -> list[LeaseAsk]:
        """What the store must lease before a request of this cost can start."""
        gates = (self._gates.get(caller.organisation.id), self._gates.get(caller.key.id))
        allowances = [gate.allowance for gate in gates if gate is not None and gate.allowance is not None]
        return [
            each.ask(cost, month)
            for each in allowances
            if not each.covers(cost, now_ns, month) and not each.is_spent(cost, now_ns, month)
        ]

    def granted(self, ask: LeaseAsk, answer: LeaseAnswer, asked_ns: int) -> None:
        gate = self._gates.get(ask.subject)
        if gate is not None and gate.allowance is not None:
            gate.allowance.granted(ask, answer, asked_ns)

    def upkeep(self, now_ns: int) -> list[LeaseAsk]:
        """Leases to extend and to return; what is to be returned is no longer spent from.

        Forgets who has not called for a while: of all keys there ever were, those in use are few.
        """
        for subject in [each.subject for each in self._gates.values() if each.is_as_new(now_ns)]:
            del self._gates[subject]
        asks = (gate.allowance.upkeep(now_ns) for gate in self._gates.values() if gate.allowance is not None)
        return [ask for ask in asks if ask is not None]

    # What several routers share

    def used(self, now_ns: int) -> dict[str, Used]:
        """By subject, of those that are limited and in use: what other routers are to know."""
        return {gate.subject: gate.used(now_ns) for gate in self._gates.values() if gate.is_limited}

    def share(self, others: Others | None, charges: Iterable[Charge], now_ns: int) -> None:
        """Others took this much since they were last heard; None: from now on this router counts alone."""
        self._others = others
        for charge in charges:
            if (gate := self._gates.get(charge.subject)) is not None:
                gate.charge(charge, now_ns)
        running = {} if others is None else others.running
        for gate in self._gates.values():
            gate.elsewhere = running.get(gate.subject, 0)

    def __len__(self) -> int:
        return len(self._gates)

    def running(self, subject: str) -> int:
        gate = self._gates.get(subject)
        return 0 if gate is None else gate.running

    def check(self) -> None:
        for gate in self._gates.values():
            gate.check()

    def _gate(self, subject: str, limits: Limits, now_ns: int) -> Gate:
        gate = self._gates.get(subject)
        if gate is None:
            gate = self._gates[subject] = Gate(subject, limits, now_ns)
            if self._others is not None:
                elsewhere = self._others.of(subject)
                gate.elsewhere = elsewhere.running
                left = (elsewhere.requests_left, elsewhere.tokens_left)
                gate.charge(Charge(subject, 0, 0, *left), now_ns)
        elif gate.limits is not limits and gate.limits != limits:
            gate.configure(limits, now_ns)
        return gate


def must_ask_the_store(answer: Reservation | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.limit is Limit.LEASE
