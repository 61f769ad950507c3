"""A replica's steps, compiled: the rules of the engine's scheduler as `simulator/engine.py` plays them.

Prompts by rank under the budget that decoding requests leave, and as far as the cache goes; runs of alike
steps as one event, plans made a step ahead where steps overlap. Left out: preemption, pausing and the prefix
cache. Answers that outgrow the cache together are computed all the same.
"""

from __future__ import annotations

import math

from simulator.fleet.compiling import compiled
from simulator.fleet.ends import pop_end, push_end
from simulator.fleet.light import batch_beside_light, batch_within, fits_beside_one, tokens_in
from simulator.fleet.rules import (
    FEWEST_TOKENS,
    LEAST_SHARE,
    LEAST_STEP_TOKENS,
    LEAST_TIMES_BASE,
    SHARE,
)
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
def limits(shape, target_s, running, kv_tokens):
    """`step_limits` of the engine: how many may run, and how many tokens a step may hold."""
    if target_s == math.inf:
        return shape.slots, shape.step_tokens
    allowed_s = SHARE * target_s
    decoding_s = allowed_s
    least_s = FEWEST_TOKENS * shape.prefill_s
    if least_s > (1.0 - SHARE) * target_s:
        decoding_s = min(allowed_s, max(target_s - least_s, target_s / (1.0 + LEAST_SHARE)))
    sequence_s = shape.decode_s + shape.kv_s * (kv_tokens / running if running else 0.0)
    batch = batch_within(shape, decoding_s, sequence_s, LEAST_TIMES_BASE)
    if not running:
        return batch, shape.step_tokens
    decode_s = shape.base_s + shape.decode_s * running + shape.kv_s * kv_tokens
    prompt = tokens_in(allowed_s - decode_s, shape.prefill_s, shape.step_tokens)
    quick = tokens_in(LEAST_SHARE * decode_s, shape.prefill_s, shape.step_tokens)
    prompt = max(prompt, min(LEAST_STEP_TOKENS, max(FEWEST_TOKENS, quick)))
    return batch, min(max(running + prompt, batch), shape.step_tokens)


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
def _target_s(replica, shape):
    target_s = math.inf
    if replica.interactive:
        target_s = shape.inter_token_s[0]
    if replica.standard:
        target_s = min(target_s, shape.inter_token_s[1])
    if replica.batch:
        target_s = min(target_s, shape.inter_token_s[2])
    return target_s


@compiled
def _plan(engines, shape, row, now_s):
    """Prompt tokens of the next step, and what they read."""
    replica, places = engines.replicas[row], engines.slots[row]
    decoding = replica.decoding
    batch, budget = limits(shape, _target_s(replica, shape), decoding, replica.kv)
    sequences_s = shape.decode_s * decoding + shape.kv_s * replica.kv
    if not fits_beside_one(shape.base_s, sequences_s, decoding, replica.taken):
        batch = min(batch, batch_beside_light(engines, shape, row, now_s))
    replica.announced = batch
    left, kv, used = max(budget - decoding, 0), 0, replica.kv + decoding
    whole = left
    for place in range(min(replica.behind, max(batch - decoding, 0))):
        if left <= 0:
            break
        request = places[places[place].behind]
        used += request.prompt
        if used > shape.kv_tokens and decoding + place:
            break
        kv += request.prompt - request.lacking
        left -= min(left, request.lacking)
    return whole - left, kv


@compiled
def begin(engines, shape, row, now_s):
    """Plans the next run as of what was known shortly before it; none without requests."""
    replica = engines.replicas[row]
    if engines.next_s[row] == math.inf or shape.depth == 1:
        _merge_arrived(engines, row, replica.arrived)
    elif replica.awaited:
        _merge_arrived(engines, row, 1)
    replica.awaited = 0
    prefill, kv = 0, 0
    if replica.behind or replica.light_until_s > 0.0:
        prefill, kv = _plan(engines, shape, row, now_s)
    if replica.arrived:
        _merge_arrived(engines, row, replica.arrived)
        if prefill == 0 and replica.decoding == 0:
            prefill, kv = _plan(engines, shape, row, now_s)
    decoding = replica.decoding
    if prefill == 0 and decoding == 0:
        engines.next_s[row] = math.inf
        replica.run_steps = 0
        replica.light_until_s = 0.0
        return
    steps = 1 if replica.behind else max(engines.slots[row, 0].heap_step - replica.step, 1)
    replica.run_prefill, replica.run_steps, replica.began_s = prefill, steps, now_s
    read_s = shape.kv_s * (replica.kv + kv)
    replica.step_s = shape.base_s + shape.prefill_s * prefill + shape.decode_s * decoding + read_s
    replica.growth_s = shape.kv_s * decoding
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
    left, done = replica.run_prefill, 0
    replica.run_prefill = 0
    while left > 0 and done < replica.behind:
        slot = places[done].behind
        count = min(left, places[slot].lacking)
        places[slot].lacking -= count
        replica.lacking -= count
        left -= count
        if places[slot].lacking:
            break
        done += 1
        _first_token(cell, shape, row, slot, now_s, period)
    if done:
        for place in range(done, replica.behind + replica.arrived):
            places[place - done].behind = places[place].behind
        replica.behind -= done
    begin(engines, shape, row, now_s)
    return ended + done


@compiled
def _first_token(cell, shape, row, slot, now_s, period):
    replica, request = cell.engines.replicas[row], cell.engines.slots[row, slot]
    if request.first_s < 0:
        request.first_s = now_s + shape.overhead_s
    replica.decoding += 1
    replica.kv += request.prompt
    if request.output == 1:
        _end(cell, shape, row, slot, now_s, period)
    else:
        answers(cell.engines, row, slot)
        push_end(cell.engines, row, replica.step + request.output - 1, slot)
