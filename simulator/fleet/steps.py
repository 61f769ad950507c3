"""A replica's steps, compiled: the rules of the engine's scheduler as `simulator/engine.py` plays them.

Prompts by rank under the budget that decoding requests leave, and as far as the cache goes; runs of alike
steps as one event, plans made a step ahead where steps overlap. Left out: preemption, pausing and the prefix
cache. Answers that outgrow the cache together are computed all the same.
"""

from __future__ import annotations

import math

from simulator.fleet.compiling import compiled
from simulator.fleet.ends import pop_end, push_end
from simulator.fleet.plan import plan_step
from simulator.fleet.state import (
    ALL,
    BIN_FACTOR,
    BINS,
    CLOSED,
    COUNTED_FROM,
    DRAINING,
    ENDS_PER_S,
    FIRST_BIN_S,
)
from simulator.fleet.views import answers, forget

# A step is planned so long before the one that runs is over, or as soon as somebody comes who may join.
AHEAD_S = 0.001
_LOG_FACTOR = math.log(BIN_FACTOR)


@compiled
def bin_of(value_s):
    if value_s <= FIRST_BIN_S:
        return 0
    return min(int(math.log(value_s / FIRST_BIN_S) / _LOG_FACTOR) + 1, BINS - 1)


@compiled
def count(engines, row, slot, times):
    """It is one more in flight, or one less."""
    replica, request = engines.replicas[row], engines.slots[row, slot]
    tokens = times * (request.prompt + request.output)
    tenant, tier = engines.tenants[request.tier, request.tenant], engines.tiers[request.tier]
    replica.taken += times
    for holder in (tenant, tier, engines.tiers[ALL]):
        holder.taken += times
        holder.held += tokens
    if request.tier == 0:
        replica.interactive += times
    elif request.tier == 1:
        replica.standard += times
    else:
        replica.batch += times


@compiled
def free_slot(engines, row, slot):
    replica = engines.replicas[row]
    engines.slots[row, replica.free].free = slot
    replica.free += 1
    count(engines, row, slot, -1)
    if replica.phase == DRAINING and replica.taken == 0:
        replica.phase = CLOSED


@compiled
def add(engines, shape, row, slot, now_s):
    """A request has reached its replica; the run in flight ends with its current step."""
    replica = engines.replicas[row]
    engines.slots[row, replica.behind + replica.arrived].behind = slot
    replica.arrived += 1
    if engines.next_s[row] == math.inf:
        begin(engines, shape, row, now_s)
        return
    if replica.run_steps > 1:
        replica.run_steps = min(replica.run_steps, steps_by(replica, now_s) + 1)
        engines.next_s[row] = replica.began_s + took_s(replica, replica.run_steps)
    if replica.arrived == 1 and replica.decoding + replica.behind < replica.announced:
        replica.awaited = now_s < engines.next_s[row] - AHEAD_S


@compiled
def took_s(replica, steps):
    return steps * replica.step_s + replica.growth_s * steps * (steps - 1) / 2


@compiled
def steps_by(replica, now_s):
    """How many steps of the run have ended by `now_s`."""
    elapsed_s = max(now_s - replica.began_s, 0.0) + 1e-9
    if replica.growth_s <= 0:
        return int(elapsed_s / replica.step_s)
    half = replica.step_s / replica.growth_s - 0.5
    return int(math.sqrt(half * half + 2 * elapsed_s / replica.growth_s) - half)


@compiled
def steps_told(engines, row, now_s):
    """Decoding steps of a replica that are over."""
    replica = engines.replicas[row]
    if replica.decoding == 0 or engines.next_s[row] == math.inf:
        return replica.step
    return replica.step + min(steps_by(replica, now_s), replica.run_steps)


@compiled
def _merge_arrived(engines, row, count):
    """Arrivals take their place among those whose prompt is not computed: better tiers first."""
    replica, places = engines.replicas[row], engines.slots[row]
    for number in range(replica.behind, replica.behind + count):
        slot = places[number].behind
        place = number
        while place > 0 and places[places[place - 1].behind].tier > places[slot].tier:
            places[place].behind = places[place - 1].behind
            place -= 1
        places[place].behind = slot
    replica.behind += count
    replica.arrived -= count


@compiled
def _slower(shape, now_s):
    """As `Slowness` has it."""
    place = math.floor((now_s - shape.slower_from_s) / shape.slower_every_s)
    return shape.slower[place] if 0 <= place < len(shape.slower) else 1.0


@compiled
def begin(engines, shape, row, now_s):
    """Plans the next run as of what was known shortly before it; none without requests."""
    replica = engines.replicas[row]
    if engines.next_s[row] == math.inf or shape.depth == 1:
        _merge_arrived(engines, row, replica.arrived)
    elif replica.awaited:
        _merge_arrived(engines, row, 1)
    replica.awaited = 0
    prefill, weight, kv = 0, 0.0, 0
    if replica.behind or replica.light_until_s > 0.0:
        prefill, weight, kv = plan_step(engines, shape, row, now_s)
    if replica.arrived:
        _merge_arrived(engines, row, replica.arrived)
        if prefill == 0 and replica.decoding == 0:
            prefill, weight, kv = plan_step(engines, shape, row, now_s)
    decoding = replica.decoding
    if prefill == 0 and decoding == 0:
        engines.next_s[row] = math.inf
        replica.run_steps = 0
        replica.light_until_s = 0.0
        return
    steps = 1 if replica.behind else max(engines.slots[row, 0].heap_step - replica.step, 1)
    replica.run_prefill, replica.run_steps, replica.began_s = prefill, steps, now_s
    computed_s = shape.base_s + shape.prefill_s * weight + shape.decode_s * decoding
    if prefill + decoding <= len(shape.tokens_s):
        computed_s = shape.tokens_s[prefill + decoding - 1]
    slower = _slower(shape, now_s)
    replica.step_s = slower * (computed_s + shape.kv_s * (replica.kv + kv))
    replica.growth_s = slower * shape.kv_s * decoding
    engines.next_s[row] = now_s + took_s(replica, steps)


@compiled
def _end(cell, shape, row, slot, now_s, period):
    engines = cell.engines
    replica, request = engines.replicas[row], engines.slots[row, slot]
    replica.decoding -= 1
    replica.kv -= request.prompt + request.output - 1
    forget(engines, row, slot)
    cell.clock[ENDS_PER_S] += 1.0
    if request.at_s >= cell.clock[COUNTED_FROM]:
        _count(cell.stats, shape, request, now_s, period)
    free_slot(engines, row, slot)


@compiled
def _count(stats, shape, request, now_s, period):
    tier, output = request.tier, request.output
    first_s = request.first_s - request.at_s
    between_s = (now_s + shape.overhead_s - request.first_s) / (output - 1) if output > 1 else 0.0
    is_late = first_s > shape.first_token_s[tier]
    is_slow = between_s > shape.inter_token_s[tier]
    stats.times[0, tier, bin_of(first_s)] += 1
    if output > 1:
        stats.times[1, tier, bin_of(between_s)] += 1
    counted = stats.periods[period, tier]
    counted.late += is_late
    counted.slow += is_slow
    counted.tokens += output
    if not is_late and not is_slow:
        counted.good += 1
        stats.tenants[request.tenant].good += 1


@compiled
def finish(cell, shape, row, period):
    """The run of a replica is over: who has a first token, who has ended; and the next run begins."""
    engines = cell.engines
    replica, places = engines.replicas[row], engines.slots[row]
    now_s, ended = engines.next_s[row], 0
    replica.busy_s += now_s - replica.began_s
    if replica.decoding:
        replica.step += replica.run_steps
        replica.kv += replica.run_steps * replica.decoding
    while replica.heap and places[0].heap_step <= replica.step:
        _end(cell, shape, row, pop_end(engines, row), now_s, period)
        ended += 1
    done = _prefilled(cell, shape, row, now_s, period)
    begin(engines, shape, row, now_s)
    return ended + done


@compiled
def _prefilled(cell, shape, row, now_s, period):
    """Prompts have what was given to them of the run; how many are whole by that."""
    replica, places = cell.engines.replicas[row], cell.engines.slots[row]
    left, done, place = replica.run_prefill, 0, 0
    replica.run_prefill = 0
    while left > 0 and place < replica.behind:  # those who were lost meanwhile are not there
        slot = places[place].behind
        request = places[slot]
        left -= request.given
        request.lacking -= request.given
        replica.lacking -= request.given
        request.given = 0
        if request.lacking:
            places[place - done].behind = slot
        else:
            done += 1
            _first_token(cell, shape, row, slot, now_s, period)
        place += 1
    if done:
        for later in range(place, replica.behind + replica.arrived):
            places[later - done].behind = places[later].behind
        replica.behind -= done
    return done


@compiled
def _first_token(cell, shape, row, slot, now_s, period):
    replica, request = cell.engines.replicas[row], cell.engines.slots[row, slot]
    if request.first_s < 0:
        request.first_s = now_s + shape.overhead_s
    replica.decoding += 1
    replica.kv += request.prompt + request.done
    left = request.output - request.done - 1
    if left == 0:
        _end(cell, shape, row, slot, now_s, period)
        return
    if request.done == 0:
        answers(cell.engines, row, slot)
    push_end(cell.engines, row, replica.step + left, slot)
