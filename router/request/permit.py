"""The permit of a request: its limits reserved, its turn come; all of it is given back exactly once."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.refusal_pace import RefusalPace
from router.core.record import Outcome
from router.core.side_work import SideWork
from router.core.tenant import Limits, Scope, UsageRecord
from router.request.identity import check_model_allowed
from router.tenants.ledger import cost_of
from router.tenants.limits import Limit, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.admission.demand import Need
    from router.admission.gate import Turn
    from router.admission.gates import Gates
    from router.core.record import Record
    from router.core.tenant import Caller, Price
    from router.request.accounts import Meter, Meters
    from router.tenants.ledger import Reservation
    from router.tenants.tenancy import Tenancy

    OnLeave = Callable[[Callable[[], None]], None]  # takes a callback for when the client leaves

# Clients refused together should not come back together.
_JITTER = 0.4
# Whoever has used up an organisation's requests must still be able to raise its limits. Of one key: far more
# than people and dashboards need.
_ADMINISTRATIVE = frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE, Scope.USAGE_READ, Scope.METRICS_READ})
_REFUSALS = frozenset({ErrorKind.OVERLOADED, ErrorKind.RATE_LIMITED})
_ADMINISTRATION = Limits(requests_per_min=1200)


class Stoppable(Protocol):
    """Work that a permit covers."""

    def stop(self) -> None:
        """Ends it early; what has ended already is not touched."""


class Permit:
    """The right of one request to use one model, from its admission to its end.

    `cut` ends the request from outside (the client left, the router is going down): it tells the engine to
    stop, and the code that reads the answer sees `cut_by` and ends. No task is ever cancelled for it, so
    there is no await at which a request could be lost.
    """

    __slots__ = (
        "_permits",
        "_price",
        "_reservation",
        "_turn",
        "_work",
        "cut_by",
        "meter",
        "record",
        "weight",
    )

    def __init__(
        self,
        permits: Permits,
        record: Record,
        meter: Meter,
        reservation: Reservation,
        price: Price | None,
        turn: Turn,
    ) -> None:
        self.record = record
        self.meter = meter
        # Raise it `again`: with the frames that it went through it would hold on to this permit for good.
        self.cut_by: InflightError | None = None
        self._permits = permits
        self._reservation = reservation
        self._price = price
        self._turn = turn
        # Its tenant's part beside others, by which the engine shares its places; 0: it does not.
        self.weight = turn.weight
        self._work: list[Stoppable] = []

    def attach(self, work: Stoppable) -> None:
        """It is stopped with the request."""
        self._work.append(work)
        if self.cut_by is not None:
            work.stop()

    def cut(self, reason: InflightError) -> None:
        if self.cut_by is None:
            self.cut_by = reason.again()
            for each in self._work:
                each.stop()

    def client_left(self) -> None:
        self.cut(InflightError(ErrorKind.CANCELLED, "the client left"))

    @property
    def slots(self) -> int:
        """Rows of a batch model that may be in flight for it at once."""
        return self._turn.slots

    @property
    def is_wanted(self) -> bool:
        """Whether others wait for what it has."""
        return self._turn.is_wanted

    async def give_way(self, rows_left: int) -> None:
        """Returns when it is its turn again; raises InflightError when it was cut."""
        await self._turn.give_way(rows_left, self)

    def heard(self, now_s: float) -> None:
        """The model has said the first thing."""
        self._turn.heard(now_s)

    def model_failed(self, error: InflightError) -> None:
        """Counts what Triton or the engine said, unless it was told to stop."""
        if self.cut_by is None:
            self.meter.model_failed(error.kind)

    def finished(self) -> None:
        """Bills the request; for code that ends well, to call before its last bytes leave."""
        self._bill(Outcome.FINISHED)

    def close(self, error: BaseException | None) -> None:
        """Gives back all that the request holds, whatever happened; the engine must not go on alone."""
        record = self.record
        for each in self._work:
            each.stop()
        if record.rollout[0] is not None:
            record.lost_attempts = sum(getattr(each, "lost_attempts", 0) for each in self._work)
        self._work.clear()  # each may hold this permit
        outcome = self._outcome(error)
        record.outcome = outcome.value
        self._permits.closed(self)
        self._turn.end(outcome is Outcome.FINISHED)
        error = self.cut_by or error
        is_left = record.journal is not None and record.journal.goes_on_elsewhere(error)
        if record.dispatched_s is None or is_left:
            self._reservation.cancel()
        else:
            self._bill(outcome, error)

    def _outcome(self, error: BaseException | None) -> Outcome:
        if self.cut_by is not None:
            return Outcome.CANCELLED if self.cut_by.kind is ErrorKind.CANCELLED else Outcome.FAILED
        if error is None:
            return Outcome.FINISHED
        return Outcome.CANCELLED if isinstance(error, asyncio.CancelledError) else Outcome.FAILED

    def _bill(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """Once: what comes later was not used by the caller."""
        if not self._reservation.is_open:
            return
        record = self.record
        cost = 0  # also of what failed: nobody pays for an answer that we owe
        if outcome is not Outcome.FAILED or _is_owed(record, error):
            tokens = record.prompt_tokens, record.cached_tokens, record.completion_tokens
            cost = cost_of(self._price, *tokens)
        record.cost = cost
        self._reservation.settle(record.prompt_tokens + record.completion_tokens, cost)
        self._permits.tenancy.record(_usage(record, cost, outcome))


class Permits:
    """The only way to a model: what is asked before a request may use one, and all permits that are out."""

    def __init__(
        self,
        tenancy: Tenancy,
        gates: Gates,
        meters: Meters,
        clock: Callable[[], float] = time.monotonic,
        side_work: SideWork | None = None,
    ) -> None:
        self.tenancy = tenancy
        self._gates = gates
        self._meters = meters
        self._clock = clock
        self._side_work = side_work or SideWork()
        self._pace = RefusalPace()
        self._open: set[Permit] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self.draining = False

    @property
    def open_count(self) -> int:
        return len(self._open)

    # Before anything is done for a request

    def enter(self, record: Record, scope: Scope, asks_model: bool) -> None:
        """Counts a request among those that its caller may send in a minute; raises where it is refused.

        Work that grows with what was sent, or with what is stored, begins after this.
        """
        ledger, now_ns = self.tenancy.ledger, time.monotonic_ns()
        if scope in _ADMINISTRATIVE:
            refusal = ledger.enter_alone(f"admin-{record.caller.key.id}", _ADMINISTRATION, now_ns)
        else:
            refusal = ledger.enter(record.caller, 0 if asks_model else None, now_ns)
            record.is_counted = refusal is None
        if refusal is not None:
            raise refused(refusal, random.random())

    def foresee_entry(self, caller: Caller, scope: Scope, asks_model: bool) -> None:
        """Raises what `enter` would raise now, before there is a whole request; counts nothing."""
        if scope in _ADMINISTRATIVE:
            return
        refusal = self.tenancy.ledger.foresee(caller, 0 if asks_model else None, time.monotonic_ns())
        if refusal is not None:
            raise refused(refusal, random.random())

    def uncount(self, record: Record, error: InflightError) -> None:
        """Whoever is told to come back later for no fault of theirs has that request back."""
        if record.is_counted and error.kind is ErrorKind.OVERLOADED and record.dispatched_s is None:
            record.is_counted = False
            self.tenancy.ledger.uncount(record.caller, time.monotonic_ns())

    def hold_s(self, record: Record, error: InflightError) -> float:
        """So long the client is told of a refusal later than it could be, if it keeps coming back at once."""
        if error.kind in _REFUSALS and record.dispatched_s is None:
            record.held_s = self._pace.hold_s(record.tenant, error.retry_after_s, self._clock())
        return record.held_s

    async def foresee(self, record: Record, model: str, least_tokens: int) -> None:
        """Raises what `admit` will raise for a request of this many tokens or more; takes nothing."""
        if record.caller.key.models is not None:
            check_model_allowed(record.caller, model)
        price = self.tenancy.catalogue.price_of(model)
        cost = cost_of(price, least_tokens, least_tokens, 1)
        (await self._reserve(record, least_tokens + 1, cost)).cancel()

    async def charge(self, record: Record, prompt_tokens: int, completion_tokens: int, percent: int) -> None:
        """For an answer that was made before, so much of its price; raises where no budget covers it."""
        price = self.tenancy.catalogue.prices.get(record.model)
        cost = cost_of(price, prompt_tokens, 0, completion_tokens) * percent // 100
        if not cost:
            return
        reservation = await self._reserve(record, 0, cost)
        record.prompt_tokens, record.completion_tokens = prompt_tokens, completion_tokens
        record.cached_tokens, record.cost = prompt_tokens, cost
        reservation.settle(0, cost)
        self.tenancy.record(_usage(record, cost, Outcome.FINISHED))

    async def admit(self, record: Record, need: Need, on_leave: OnLeave | None = None) -> Permit:
        """For a request whose release is chosen; raises InflightError where it is refused.

        The permit has to be closed. Whoever leaves meanwhile, or later, has it cut.
        """
        record.admitted_s = record.dispatched_s = None  # one that is sent again has not been sent this time
        caller, tenancy = record.caller, self.tenancy
        if caller.key.models is not None:
            check_model_allowed(caller, record.model)
        if self.draining:
            raise _shutting_down()
        if tenancy.spool.is_full:
            raise InflightError(ErrorKind.OVERLOADED, "usage cannot be recorded at the moment")
        price = tenancy.catalogue.price_of(record.model)
        cost = cost_of(price, need.prompt_tokens, 0, need.completion_tokens)
        reservation = await self._reserve(record, need.prompt_tokens + need.completion_tokens, cost)
        try:
            if self.draining:  # it may have begun while the store was asked
                raise _shutting_down()
            turn = self._gates[record.model, record.model_version].offer(record, need)
        except BaseException:
            reservation.cancel()
            raise
        record.admitted_s = self._clock()
        permit = Permit(self, record, self._meters.opened(record), reservation, price, turn)
        self._open.add(permit)
        if len(self._open) == 1:
            self._side_work.is_answering = True
            if self._side_work.programs:
                self._side_work.look()
        try:
            if on_leave is not None:
                on_leave(permit.client_left)
            if turn.is_waiting:
                await turn.come(permit)
            if permit.cut_by is not None:
                raise permit.cut_by.again()
        except BaseException as error:
            permit.close(error)
            raise
        return permit

    async def _reserve(self, record: Record, tokens: int, cost: int) -> Reservation:
        """At once, unless the store has to be asked for more of a budget first."""
        caller, requests = record.caller, 0 if record.is_counted else 1
        now_s, month = time.time(), self.tenancy.month
        name = month.name if month.begins_s <= now_s < month.ends_s else month.at(now_s)
        answer = self.tenancy.ledger.reserve(caller, tokens, cost, time.monotonic_ns(), name, requests)
        if isinstance(answer, Refusal) and answer.limit is Limit.LEASE:
            answer = await self.tenancy.reserve(caller, tokens, cost, requests)
        if isinstance(answer, Refusal):
            raise refused(answer, random.random())
        return answer

    def closed(self, permit: Permit) -> None:
        self._open.remove(permit)
        permit.meter.closed(permit.record, self._clock())
        if not self._open:
            self._side_work.is_answering = False
            if self._side_work.programs:
                self._side_work.look()
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()

    # Shutting down

    def drain(self) -> None:
        """No more are given out, and there is no time left for those who wait in a queue."""
        self.draining = True
        self._gates.drain()

    async def empty(self, timeout_s: float) -> bool:
        """Waits until every permit is back; False when that took too long."""
        if self._open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await asyncio.wait([waiter], timeout=timeout_s)
        return not self._open

    def cut_all(self, reason: Callable[[], InflightError]) -> None:
        for permit in list(self._open):
            permit.cut(reason())


def _shutting_down() -> InflightError:
    return InflightError(ErrorKind.OVERLOADED, "the server is shutting down")


def _is_owed(record: Record, error: BaseException | None) -> bool:
    """Whether an answer that failed is paid for: what was delivered until the caller's own fault ended it."""
    is_theirs = isinstance(error, InflightError) and error.kind.is_callers_fault
    return is_theirs and record.completion_tokens > 0


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
        message = f"this request alone exceeds the limit of {refusal.limit.value} of this {whose}"
        return InflightError(ErrorKind.RATE_LIMITED, message)
    wait_s = refusal.retry_after_s * (1 + _JITTER * chance)
    return InflightError(ErrorKind.RATE_LIMITED, message, retry_after_s=wait_s)
