"""What goes wrong in a cell: replicas, hosts, routers and Redis go, and come back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from simulator.fleet.choice import any_replica
from simulator.fleet.state import CLOSED, DOWN, DRAINING, IS_SHARING, OPEN, STARTING
from simulator.fleet.steps import free_slot, steps_told
from simulator.fleet.turns import join, push_retry, tenants_of
from simulator.fleet.views import forget

if TYPE_CHECKING:
    from simulator.fleet.state import Cell


class Kind(str, Enum):
    REPLICA = "replica"
    HOST = "host"
    ZONE = "zone"
    ROUTER = "router"
    REDIS = "redis"


@dataclass(frozen=True)
class Failure:
    """`number` is which one of its kind, in the cell or of the zones; `lasting_s` until it is there again.

    Replicas need their cold start on top.
    """

    kind: Kind
    at_s: float
    lasting_s: float = inf
    zone: int = 0
    number: int = 0


# After an error clients come back.
CLIENT_RETRY_S = 1.0


def lose_replica(cell: Cell, row: int, now_s: float, period: int, is_alone: bool = True) -> None:
    """Its requests begin anew elsewhere, streams from where they were; with a whole zone they fail."""
    engines = cell.engines
    replica, places = engines.replicas[row], engines.slots[row]
    step = steps_told(engines, row, now_s)
    decoding, behind = _requests(cell, row)
    lost = [(slot, int(end - step)) for end, slot in decoding] + [
        (slot, int(places[slot].output - places[slot].done) if places[slot].done else -1) for slot in behind
    ]
    for slot, left in lost:
        forget(engines, row, slot)
        if is_alone:
            _begin_anew(cell, places[slot], left, now_s, period)
        else:
            cell.stats.periods[period, int(places[slot].tier)].failed += 1
        free_slot(engines, row, slot)
    replica.heap = replica.behind = replica.arrived = replica.run_steps = replica.run_prefill = 0
    replica.decoding = replica.kv = replica.lacking = replica.awaited = 0
    engines.next_s[row] = np.inf
    replica.phase = DOWN


def _requests(cell: Cell, row: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Those that decode, with the step that ends them, in order; and those behind."""
    replica, places = cell.engines.replicas[row], cell.engines.slots[row]
    decoding = [(int(places[at].heap_step), int(places[at].heap_slot)) for at in range(replica.heap)]
    return sorted(decoding), [int(places[at].behind) for at in range(replica.behind + replica.arrived)]


def _begin_anew(cell: Cell, request: np.record, left: int, now_s: float, period: int) -> None:
    left = int(request.output) if left < 1 else left
    lane = int(request.tier) * tenants_of(cell.queue) + int(request.tenant)
    prompt = int(request.prompt + request.output) - left
    at_s, first_s = float(request.at_s), float(request.first_s)
    if not join(cell.queue, lane, at_s, first_s, prompt, left, int(request.attempt), any_replica(cell)):
        _fail(cell, request, now_s, period)


def _fail(cell: Cell, request: np.record, now_s: float, period: int) -> None:
    """Its client hears of it, and comes back."""
    cell.stats.periods[period, int(request.tier)].failed += 1
    who = int(request.tier), int(request.tenant)
    size = int(request.prompt), int(request.output), int(request.attempt) + 1
    push_retry(cell.queue, now_s + CLIENT_RETRY_S, *who, *size)


def lose_router(cell: Cell, router: int, now_s: float, period: int) -> None:
    """What ran through it has lost its client, and engines stop computing for it."""
    engines = cell.engines
    engines.is_up[router] = 0
    for row in range(len(engines.replicas)):
        replica, places = engines.replicas[row], engines.slots[row]
        decoding, behind = _requests(cell, row)
        kept = [each for each in decoding if places[each[1]].router != router]
        waits = [slot for slot in behind if places[slot].router != router]
        for end, slot in decoding:
            if places[slot].router == router:
                replica.decoding -= 1
                left = end - replica.step
                replica.kv -= places[slot].prompt + places[slot].output - 1 - left
        replica.lacking -= sum(int(places[slot].lacking) for slot in set(behind) - set(waits))
        for slot in [each for _, each in decoding if places[each].router == router]:
            _drop(cell, row, slot, now_s, period)
        for slot in [each for each in behind if places[each].router == router]:
            _drop(cell, row, slot, now_s, period)
        for at, (end, slot) in enumerate(kept):  # in order, so it is a heap
            places[at].heap_step, places[at].heap_slot = end, slot
        for at, slot in enumerate(waits):
            places[at].behind = slot
        replica.heap, replica.behind = len(kept), len(waits)
        replica.arrived = replica.awaited = 0


def _drop(cell: Cell, row: int, slot: int, now_s: float, period: int) -> None:
    forget(cell.engines, row, slot)
    _fail(cell, cell.engines.slots[row, slot], now_s, period)
    free_slot(cell.engines, row, slot)


def begin(cell: Cell, failure: Failure, hosts: int, now_s: float, period: int) -> list[int]:
    """The replicas that are down by it."""
    engines = cell.engines
    if failure.kind is Kind.REDIS:
        cell.clock[IS_SHARING] = 0.0
        return []
    if failure.kind is Kind.ROUTER:
        lose_router(cell, failure.number, now_s, period)
        return []
    rows = range(len(engines.replicas))
    if failure.kind is Kind.REPLICA:
        rows = range(failure.number, failure.number + 1)
    elif failure.kind is Kind.HOST:
        rows = range(failure.number * hosts, min((failure.number + 1) * hosts, len(engines.replicas)))
    there = [row for row in rows if engines.replicas[row].phase in (OPEN, DRAINING, STARTING)]
    for row in there:
        lose_replica(cell, row, now_s, period, is_alone=failure.kind is not Kind.ZONE)
    return there


def end(cell: Cell, failure: Failure) -> None:
    if failure.kind is Kind.REDIS:
        cell.clock[IS_SHARING] = 1.0
    elif failure.kind is Kind.ROUTER:
        cell.engines.is_up[failure.number] = 1


def revive(cell: Cell, rows: list[int]) -> None:
    """They are there again, and begin their cold start when they are wanted."""
    for row in rows:
        if cell.engines.replicas[row].phase == DOWN:
            cell.engines.replicas[row].phase = CLOSED
