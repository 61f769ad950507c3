"""Lets a request in to a model: limits and budget reserved before, settled and recorded after."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.tenant import UsageRecord
from router.request.identity import check_model_allowed
from router.request.ticket import Outcome
from router.tenants.limits import Limit, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from router.admission.demand import Need
    from router.admission.gate import Turn
    from router.admission.gates import Gates
    from router.control.releases.arms import ArmRecorder
    from router.core.record import Record
    from router.request.service import Service
    from router.request.ticket import Ticket, TicketDesk
    from router.tenants.ledger import Reservation
    from router.tenants.tenancy import Tenancy

    OnLeave = Callable[[Callable[[], None]], None]

# Clients refused together should not come back together.
_JITTER = 0.4


def admitted(
    service: Service, record: Record, model: str, need: Need, on_leave: OnLeave | None = None
) -> Admitted:
    """The only way to a model: `async with admitted(...) as ticket`.

    `on_leave` takes a callback for when the client leaves, which cuts the ticket.
    """
    desk, tenancy, arms, gates = service.desk, service.tenancy, service.arms, service.gates
    return Admitted(desk, tenancy, record, model, need, arms, gates, on_leave)


class Admitted:
    """One request at one model, for the length of an `async with` block; ends exactly once."""

    def __init__(
        self,
        desk: TicketDesk,
        tenancy: Tenancy,
        record: Record,
        model: str,
        need: Need,
        arms: ArmRecorder | None = None,
        gates: Gates | None = None,
        on_leave: OnLeave | None = None,
    ) -> None:
        self._desk = desk
        self._arms = arms
        self._gates = gates
        self._on_leave = on_leave
        self._tenancy = tenancy
        self._record = record
        self._need = need
        record.model = model
        self._price = self._tenancy.catalogue.prices.get(model)
        self._reservation: Reservation
        self._ticket: Ticket
        self._turn: Turn | None = None

    async def __aenter__(self) -> Ticket:
        record, need = self._record, self._need
        record.admitted_s = record.dispatched_s = None  # one that is sent again has not been sent this time
        check_model_allowed(record.caller, record.model)
        self._desk.check_open()
        if self._tenancy.spool.is_full:
            raise InflightError(ErrorKind.OVERLOADED, "usage cannot be recorded at the moment")
        cost = 0 if self._price is None else self._price.cost(need.prompt_tokens, 0, need.completion_tokens)
        tokens = need.prompt_tokens + need.completion_tokens
        answer = await self._tenancy.reserve(record.caller, tokens, cost)
        if isinstance(answer, Refusal):
            raise refused(answer, random.random())
        self._reservation = answer
        try:
            ticket = self._desk.admit(record)  # while the store was asked, draining may have begun
            if self._gates is not None:
                self._turn = self._gates.offer(record, need)
        except BaseException:
            answer.cancel()
            raise
        record.admitted_s = time.monotonic()
        ticket.bill = self._bill
        self._ticket = ticket.__enter__()
        try:
            await self._wait(ticket)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return ticket

    async def _wait(self, ticket: Ticket) -> None:
        """At the gate, where there is one; whoever leaves meanwhile is not waited for."""
        if self._on_leave is not None:
            self._on_leave(lambda: ticket.cut(InflightError(ErrorKind.CANCELLED, "the client left")))
        if self._turn is not None:
            ticket.heard = self._turn.heard
            await self._turn.come(ticket)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticket.__exit__(kind, error, trace)
        if self._turn is not None:
            self._turn.end(self._record.outcome == Outcome.FINISHED.value)
        # What a router cuts off because it goes down says nothing about a release.
        if self._arms is not None and self._record.rollout[0] is not None and not self._desk.draining:
            self._arms.closed(self._record, self._ticket.cut_by or error)
        if self._record.dispatched_s is None:
            self._reservation.cancel()
        else:
            self._bill(Outcome(self._record.outcome))
        del self._ticket  # each holds the other, and the collector seldom comes

    def _bill(self, outcome: Outcome) -> None:
        """Once: what comes later was not used by the caller."""
        if not self._reservation.is_open:
            return
        record = self._record
        cost = 0  # also of what failed: nobody pays for an answer that we owe
        if self._price is not None and outcome is not Outcome.FAILED:
            cost = self._price.cost(record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        self._reservation.settle(record.prompt_tokens + record.completion_tokens, cost)
        self._tenancy.record(_usage(record, cost, outcome))


def _usage(record: Record, cost: int, outcome: Outcome) -> UsageRecord:
    now_s, ended_s = time.monotonic(), time.time()
    caller = record.caller
    return UsageRecord(
        request_id=record.request_id,
        organisation_id=caller.organisation.id,
        user_id=caller.user.id,
        key_id=caller.key.id,
        model=record.model,
        model_version=record.model_version,
        started_s=ended_s - (now_s - record.arrived_s),
        ended_s=ended_s,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        cost=cost,
        outcome=outcome.value,
        stages=record.stages(now_s),
    )


def refused(refusal: Refusal, chance: float) -> InflightError:
    """What the caller is told of a limit; `chance` in 0..1 spreads the time to come back."""
    if refusal.limit is Limit.LEASE:
        message = "the budget of this key cannot be checked at the moment"
        return InflightError(ErrorKind.OVERLOADED, message)
    whose = "organisation" if refusal.subject.startswith("org") else "key"
    if refusal.limit is Limit.BUDGET:
        message = f"the {refusal.limit.value} of this {whose} does not cover this request"
        return InflightError(ErrorKind.QUOTA, message)
    message = f"this {whose} has reached its limit of {refusal.limit.value}"
    if refusal.retry_after_s is None:
        message = f"this request alone is more than the limit of {refusal.limit.value} of this {whose} allows"
        return InflightError(ErrorKind.RATE_LIMITED, message)
    wait_s = refusal.retry_after_s * (1 + _JITTER * chance)
    return InflightError(ErrorKind.RATE_LIMITED, message, retry_after_s=wait_s)
