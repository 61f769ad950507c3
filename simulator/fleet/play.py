"""The time of a cell, compiled: arrivals, admission, routing, steps and retries, in the order they happen."""

from __future__ import annotations

import math

import numpy as np

from simulator.fleet.compiling import compiled
from simulator.fleet.rules import ALONE_TIMES, CACHE_SHARE
from simulator.fleet.state import (
    ARRIVAL,
    ASKED,
    COUNTED_FROM,
    DRAWN,
    ENDS_PER_S,
    IS_SHARING,
    IS_TRACED,
    LATE,
    NOW,
    OPEN,
    PUBLISHING,
    REQUESTS,
    RETRIES,
    WAITING,
)
from simulator.fleet.steps import add, count_tier, expected, finish
from simulator.fleet.turns import charge, join, leave, next_lane, pop_retry, push_retry, tenants_of

NOBODY = -1
# Ends a second, and the share of those foretold to be late, are over so many seconds.
_ENDS_S, _RISK_S = 5.0, 30.0
# Nine of ten first tokens of those that wait come within so many times what is foretold.
_LATE_TIMES = 1.25


@compiled
def chance(cell):
    """Above 0, below 1, by L'Ecuyer's combined generator: the same for the same seed everywhere."""
    cell.chance[0] = 40014 * cell.chance[0] % 2147483563
    cell.chance[1] = 40692 * cell.chance[1] % 2147483399
    return ((cell.chance[0] - cell.chance[1]) % 2147483562 + 1) / 2147483563.0


@compiled
def router_of(is_up, number):
    """Balancers send requests to the routers that are up, in turn."""
    for offset in range(len(is_up)):
        router = (number + offset) % len(is_up)
        if is_up[router]:
            return router
    return NOBODY


@compiled
def load_of(engines, shape, router, row, need, is_sharing):
    """Tokens that a replica has to do, as far as the router knows; -1 where it has no room for `need` more.

    What a router knows of the others is what they told last; it knows nothing of them while they cannot.
    """
    replica, view, told = engines.replicas[row], engines.views[router, row], engines.told[row]
    if replica.phase != OPEN:
        return -1
    tokens, taken = view.tokens, view.slots
    if is_sharing:
        tokens += told.tokens - view.told_tokens
        taken += told.slots - view.told_slots
    if taken >= replica.announced or replica.free == 0:
        return -1
    if replica.held + need > CACHE_SHARE * shape.kv_tokens and replica.taken:
        return -1
    return tokens


@compiled
def least_loaded(engines, shape, router, need, is_sharing):
    """`choose` of the router without a key, of the replicas that it thinks have room."""
    best, least, least_begun = NOBODY, 0, 0
    for row in range(len(engines.replicas)):
        tokens, begun = load_of(engines, shape, router, row, need, is_sharing), engines.replicas[row].begun
        is_less = tokens < least or (tokens == least and begun < least_begun)
        if tokens >= 0 and (best == NOBODY or is_less):
            best, least, least_begun = row, tokens, begun
    return best


@compiled
def chosen_replica(cell, shape, router, prompt, need):
    """`choose` of the router: every prompt has an opening of its own, which belongs to one by chance."""
    engines, is_sharing = cell.engines, cell.clock[IS_SHARING] > 0
    best = least_loaded(engines, shape, router, need, is_sharing)
    if best == NOBODY:
        return NOBODY
    least = load_of(engines, shape, router, best, need, is_sharing)
    home = int(chance(cell) * len(engines.replicas))
    tokens = load_of(engines, shape, router, home, need, is_sharing)
    return home if 0 <= tokens <= least + max(prompt, least // 4) else best


@compiled
def service_s(replica, shape, prompt):
    """From now to the first token on a replica: what lies before it, in steps of a full budget."""
    tokens = replica.lacking + (1 if shape.is_prefilled else prompt)
    beside_s = shape.base_s + shape.decode_s * replica.decoding + shape.kv_s * replica.kv
    budget = max(shape.step_tokens - replica.decoding, 64)
    return tokens * shape.prefill_s + (tokens / budget + 1.5) * beside_s + shape.overhead_s


@compiled
def alone_s(shape, prompt):
    return prompt * shape.prefill_s + shape.base_s + shape.overhead_s


@compiled
def price_s(shape, prompt, output):
    """Engine time of a request beside a batch of half the slots."""
    read_s = shape.kv_s * (prompt + output / 2)
    prefill_s = 0.0 if shape.is_prefilled else prompt * shape.prefill_s
    return prefill_s + output * (2.0 * shape.base_s / shape.slots + shape.decode_s + read_s)


@compiled
def send(cell, shape, row, router, tier, tenant, request, now_s):
    """To a replica; `request` is when it arrived, its first token, its prompt, its answer and its attempt."""
    engines = cell.engines
    replica, view = engines.replicas[row], engines.views[router, row]
    replica.free -= 1
    number = engines.slots[row, replica.free].free
    slot = engines.slots[row, number]
    slot.at_s, slot.first_s, slot.prompt, slot.output, slot.attempt = request
    slot.tier, slot.tenant, slot.router = tier, tenant, router
    slot.lacking = 1 if shape.is_prefilled else slot.prompt
    replica.taken += 1
    replica.begun += 1
    replica.held += slot.prompt + slot.output
    replica.lacking += slot.lacking
    count_tier(replica, tier, 1)
    view.tokens += slot.prompt + expected(slot.output)
    view.slots += 1
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
def wait_s(cell, tier, lane):
    """Until its turn comes, by how many answers end in a second, and the weights of those that wait."""
    queue, tenants = cell.queue, tenants_of(cell.queue)
    weights = queue.tiers[tier].weight
    for other in range(len(queue.tiers)):
        if other != tier and queue.tiers[other].waiting:
            weights += queue.tiers[other].weight
    before = queue.tiers[tier].waiting
    if before and tenants > 1:
        active = 1
        for other in range(tier * tenants, (tier + 1) * tenants):
            active += other != lane and queue.lanes[other].waiting > 0
        before = min(before, (queue.lanes[lane].waiting + 1) * active)
    ends_per_s = max(cell.clock[ENDS_PER_S] / _ENDS_S, 0.1)
    return (before + 1) / (ends_per_s * queue.tiers[tier].weight / weights)


@compiled
def arrive(cell, shape, tier, tenant, request, period):
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
    lane = tier * tenants_of(queue) + tenant
    router, row = router_of(engines.is_up, number), NOBODY
    if queue.counts[WAITING] == 0 and router != NOBODY:
        row = chosen_replica(cell, shape, router, prompt, prompt + expected(output))
    if row != NOBODY:
        queued_s, late_s = 0.0, service_s(engines.replicas[row], shape, prompt)
    else:
        queued_s = wait_s(cell, tier, lane)
        late_s = _LATE_TIMES * (queued_s + alone_s(shape, prompt))
    is_late = late_s > max(shape.first_token_s[tier], ALONE_TIMES * alone_s(shape, prompt))
    cell.clock[ASKED] += 1.0
    cell.clock[LATE] += is_late
    if is_late or router == NOBODY:
        refuse(cell, shape, tier, tenant, request, queued_s, period)
    elif row != NOBODY:
        charge(queue, lane, work_s)
        send(cell, shape, row, router, tier, tenant, request, at_s)
    elif not join(queue, lane, at_s, first_s, prompt, output, attempt):
        refuse(cell, shape, tier, tenant, request, queued_s, period)


@compiled
def hand_on(cell, shape, now_s, period):
    """Turns of those that wait, as long as there is room; who would be too late is refused."""
    queue, engines = cell.queue, cell.engines
    while queue.counts[WAITING]:
        lane = next_lane(queue)
        place = queue.lanes[lane].head
        entry = queue.entries[place]
        tier, tenant = lane // tenants_of(queue), lane % tenants_of(queue)
        router = router_of(engines.is_up, place)
        if router == NOBODY:
            return
        need = entry.prompt + expected(entry.output)
        row = chosen_replica(cell, shape, router, entry.prompt, need)
        due_s = entry.at_s + max(shape.first_token_s[tier], ALONE_TIMES * alone_s(shape, entry.prompt))
        if row == NOBODY and (now_s <= due_s or entry.first_s >= 0):
            return
        late_s = now_s if row == NOBODY else now_s + service_s(engines.replicas[row], shape, entry.prompt)
        request = (entry.at_s, entry.first_s, entry.prompt, entry.output, entry.attempt)
        leave(queue, lane)
        if entry.first_s < 0 and late_s > due_s:
            refuse(cell, shape, tier, tenant, request, 1.0, period)
        else:
            charge(queue, lane, price_s(shape, entry.prompt, entry.output))
            send(cell, shape, row, router, tier, tenant, request, now_s)


@compiled
def publish(engines):
    """Routers tell each other what they have in flight."""
    for row in range(len(engines.told)):
        told = engines.told[row]
        told.tokens = told.slots = 0
        for router in range(len(engines.is_up)):
            view = engines.views[router, row]
            view.told_tokens, view.told_slots = view.tokens, view.slots
            told.tokens += view.tokens
            told.slots += view.slots


@compiled
def _fade(clock, now_s):
    passed_s = now_s - clock[NOW]
    if passed_s > 0:
        clock[ENDS_PER_S] *= math.exp(-passed_s / _ENDS_S)
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
    arrive(cell, shape, new.tier, new.tenant, (now_s, -1.0, new.prompt, new.output, 0), period)


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
            if clock[IS_SHARING] > 0:
                publish(engines)
            hand_on(cell, shape, now_s, period)
        elif now_s == clock[ARRIVAL]:
            draw(cell, shape, now_s, period)
            clock[ARRIVAL] = next_arrival_s(cell, now_s, rate)
        else:
            back = queue.retries[pop_retry(queue)]
            again = (now_s, -1.0, back.prompt, back.output, back.attempt)
            arrive(cell, shape, back.tier, back.tenant, again, period)
    _fade(clock, until_s)
