"""The time of a cell, compiled: arrivals, admission, routing, steps and retries, in the order they happen."""

from __future__ import annotations

import math

import numpy as np

from simulator.fleet.choice import NOBODY, any_replica, chance, chosen_replica, publish, router_of
from simulator.fleet.compiling import compiled
from simulator.fleet.forecasts import alone_s, price_s, service_s, wait_s
from simulator.fleet.rules import ALONE_TIMES, PASS_S
from simulator.fleet.shares import displaces, fits, is_guaranteed, is_light, is_open
from simulator.fleet.state import (
    ARRIVAL,
    ASKED,
    CACHE,
    COUNTED_FROM,
    DRAWN,
    ENDS_PER_S,
    ENDS_S,
    IS_SHARING,
    IS_TRACED,
    LATE,
    NOW,
    OPEN,
    PUBLISHING,
    REQUESTS,
    RETRIES,
    SLOTS,
    WAITING,
)
from simulator.fleet.steps import add, count, finish
from simulator.fleet.turns import charge, join, leave, next_lane, next_tier, pop_retry, push_retry, tenants_of
from simulator.fleet.views import note

# The share of those foretold to be late is over so many seconds.
_RISK_S = 30.0
# Nine of ten first tokens of those that wait come within so many times what is foretold, as routers learn it.
_LATE_TIMES = 3.0


@compiled
def send(cell, shape, row, router, tier, tenant, request, now_s):
    """To a replica; `request` is when it arrived, its first token, its prompt, its answer and its attempt."""
    engines = cell.engines
    replica = engines.replicas[row]
    replica.free -= 1
    number = engines.slots[row, replica.free].free
    slot = engines.slots[row, number]
    slot.at_s, slot.first_s, slot.prompt, slot.output, slot.attempt = request
    slot.tier, slot.tenant, slot.router = tier, tenant, router
    slot.lacking, slot.given, slot.done = 1 if shape.is_prefilled else slot.prompt, 0, 0
    replica.begun += 1
    replica.lacking += slot.lacking
    count(engines, row, number, 1)
    note(engines, row, number)
    add(engines, shape, row, number, now_s)


@compiled
def refuse(cell, shape, tier, tenant, request, after_s, period):
    _, _, prompt, output, attempt = request
    if attempt < shape.retries:
        at_s = cell.clock[NOW] + max(after_s, 1.0) * (0.8 + 0.4 * chance(cell))
        push_retry(cell.queue, at_s, tier, tenant, prompt, output, attempt + 1)
    else:
        cell.stats.periods[period, tier].refused += 1


@compiled
def replica_for(cell, shape, router, tier, tenant, prompt, home, waited_s, has_room):
    """Where it begins now, if anywhere; and whether it is let in whatever others have."""
    is_spared = is_light(cell.engines, tier, tenant)
    if router == NOBODY:
        return NOBODY, is_spared
    if has_room:
        return chosen_replica(cell, router, prompt, home), is_spared
    if displaces(cell, shape, tier, tenant, waited_s):
        return chosen_replica(cell, router, prompt, home), True
    return NOBODY, is_spared


@compiled
def may_pass(cell, tier, now_s):
    """Whether those that fit may begin before the one whose turn it is: for a while, or as guaranteed."""
    queue = cell.queue
    if not is_open(cell, tier):
        return False
    if queue.counts[WAITING] == 0:
        return True
    first = next_tier(queue.tiers, 0)
    turn_s = queue.entries[queue.lanes[next_lane(queue, first)].head].turn_s
    return turn_s < 0 or now_s - turn_s <= PASS_S or (tier < first and is_guaranteed(cell, tier))


@compiled
def arrive(cell, shape, tier, tenant, home, request, period):
    """Refused if its first token would be too late; else sent at once, or it waits for its turn."""
    at_s, first_s, prompt, output, attempt = request
    queue, engines, counted = cell.queue, cell.engines, cell.stats.periods[period, tier]
    number = queue.counts[REQUESTS]
    queue.counts[REQUESTS] += 1
    if attempt == 0 and at_s >= cell.clock[COUNTED_FROM]:
        counted.offered += 1
        cell.stats.tenants[tenant].offered += 1
    work_s = price_s(shape, prompt, output)
    counted.work_s += work_s
    queue.tiers[tier].asked_s = at_s
    lane, router = tier * tenants_of(queue) + tenant, router_of(engines.is_up, number)
    has_room = fits(cell, router, prompt + output) and may_pass(cell, tier, at_s)
    row, is_spared = replica_for(cell, shape, router, tier, tenant, prompt, home, 0.0, has_room)
    if row != NOBODY:
        queued_s, late_s = 0.0, service_s(engines.replicas[row], shape, prompt)
    else:
        queued_s = wait_s(cell, tier, lane, prompt + output)
        late_s = _LATE_TIMES * (queued_s + alone_s(shape, prompt))
    is_late = late_s > max(shape.first_token_s[tier], ALONE_TIMES * alone_s(shape, prompt)) and not is_spared
    cell.clock[ASKED] += 1.0
    cell.clock[LATE] += is_late
    if is_late or router == NOBODY:
        refuse(cell, shape, tier, tenant, request, queued_s, period)
    elif row != NOBODY:
        charge(queue, lane, work_s)
        send(cell, shape, row, router, tier, tenant, request, at_s)
    elif not join(queue, lane, at_s, first_s, prompt, output, attempt, home):
        refuse(cell, shape, tier, tenant, request, queued_s, period)


@compiled
def hand_on(cell, shape, now_s, period):
    """Turns of those that wait, as long as there is room; who would be too late is refused."""
    tried = 0
    while True:
        tier = next_tier(cell.queue.tiers, tried)
        if tier < 0:
            return
        is_its_turn = tried == 0
        tried = 0 if hand_on_first(cell, shape, tier, is_its_turn, now_s, period) else tried | 1 << tier


@compiled
def hand_on_first(cell, shape, tier, is_its_turn, now_s, period):
    """Whether the first in turn of a tier waits no more."""
    queue, engines = cell.queue, cell.engines
    lane = next_lane(queue, tier)
    place, tenant = queue.lanes[lane].head, lane % tenants_of(queue)
    entry, router = queue.entries[place], router_of(engines.is_up, place)
    waited_s, prompt, output = now_s - entry.at_s, entry.prompt, entry.output
    has_room = fits(cell, router, prompt + output)
    has_room = has_room and (is_open(cell, tier) if is_its_turn else may_pass(cell, tier, now_s))
    row, is_spared = replica_for(cell, shape, router, tier, tenant, prompt, entry.home, waited_s, has_room)
    due_s = entry.at_s + max(shape.first_token_s[tier], ALONE_TIMES * alone_s(shape, prompt))
    has_begun = entry.first_s >= 0
    if row == NOBODY and (now_s <= due_s or has_begun or router == NOBODY):
        if entry.turn_s < 0:
            entry.turn_s = now_s
        return False
    request = (entry.at_s, entry.first_s, prompt, output, entry.attempt)
    leave(queue, lane)
    if row == NOBODY or not (
        has_begun or is_spared or now_s + service_s(engines.replicas[row], shape, prompt) <= due_s
    ):
        refuse(cell, shape, tier, tenant, request, 1.0, period)
    else:
        charge(queue, lane, price_s(shape, prompt, output))
        send(cell, shape, row, router, tier, tenant, request, now_s)
    return True


@compiled
def look(cell, shape):
    """What the open replicas have, together."""
    cell.clock[SLOTS] = cell.clock[CACHE] = 0.0
    for replica in cell.engines.replicas:
        if replica.phase == OPEN:
            cell.clock[SLOTS] += replica.announced
            cell.clock[CACHE] += shape.kv_tokens


@compiled
def _fade(clock, now_s):
    passed_s = now_s - clock[NOW]
    if passed_s > 0:
        clock[ENDS_PER_S] *= math.exp(-passed_s / ENDS_S)
        kept = math.exp(-passed_s / _RISK_S)
        clock[ASKED] *= kept
        clock[LATE] *= kept
        clock[NOW] = now_s


@compiled
def next_arrival_s(cell, now_s, rate):
    if cell.clock[IS_TRACED] > 0:
        drawn = cell.queue.counts[DRAWN]
        return cell.lengths[drawn].at_s if drawn < len(cell.lengths) else math.inf
    return now_s - math.log(chance(cell)) / rate if rate > 0 else math.inf


@compiled
def draw(cell, shape, now_s, period):
    """A new request."""
    number = cell.queue.counts[DRAWN] if cell.clock[IS_TRACED] > 0 else int(chance(cell) * len(cell.lengths))
    cell.queue.counts[DRAWN] += 1
    new = cell.lengths[number]
    home = new.home if new.home >= 0 else any_replica(cell)
    # Of another type, `arrive` would be compiled twice: a 0 is one to numba.
    first = (now_s, -1.0, new.prompt, new.output, np.int64(0))
    arrive(cell, shape, new.tier, new.tenant, home, first, period)


@compiled
def advance(cell, shape, until_s, rate, period):
    """Until `until_s`, with `rate` new requests a second."""
    engines, queue, clock = cell.engines, cell.queue, cell.clock
    clock[ARRIVAL] = next_arrival_s(cell, clock[NOW], rate)
    while True:
        row = np.argmin(engines.next_s)
        retry_s = queue.retries[0].at_s if queue.counts[RETRIES] else math.inf
        now_s = min(engines.next_s[row], clock[ARRIVAL], retry_s, clock[PUBLISHING])
        if now_s > until_s:
            break
        _fade(clock, now_s)
        if now_s == engines.next_s[row]:
            if finish(cell, shape, row, period) and queue.counts[WAITING]:
                hand_on(cell, shape, now_s, period)
        elif now_s == clock[PUBLISHING]:
            clock[PUBLISHING] = now_s + shape.publish_s
            look(cell, shape)
            if clock[IS_SHARING] > 0:
                publish(engines, now_s)
            hand_on(cell, shape, now_s, period)
        elif now_s == clock[ARRIVAL]:
            draw(cell, shape, now_s, period)
            clock[ARRIVAL] = next_arrival_s(cell, now_s, rate)
        else:
            back = queue.retries[pop_retry(queue)]
            again = (now_s, -1.0, back.prompt, back.output, back.attempt)
            arrive(cell, shape, back.tier, back.tenant, any_replica(cell), again, period)
    _fade(clock, until_s)
