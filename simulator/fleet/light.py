"""Batches beside tenants that have little, compiled: as `Pace` and `Places` of the engine have them."""

from __future__ import annotations

import math

from simulator.fleet.compiling import compiled
from simulator.fleet.state import TIERS

# As in python_backend/engine/scheduling/pace.py and python_backend/sharing/places.py; the tests hold both
# against each other.
STRETCH, STEP_STRETCH, LEAST_TIMES_BASE, REMEMBERED_S = 3.0, 2.5, 1.0, 5.0
GUARANTEES = (0.6, 0.3, 0.1)
LEAST_BATCH_SHARE = 8


@compiled
def tokens_in(time_s, token_s, most):
    if time_s <= 0.0:
        return 0
    return most if time_s >= token_s * most else int(time_s / token_s)


@compiled
def batch_within(shape, allowed_s, sequence_s, least_times_base):
    """How many sequences a step of that time holds; no fewer than are worth its fixed cost."""
    fitting = tokens_in(allowed_s - shape.base_s, sequence_s, shape.slots)
    least = tokens_in(least_times_base * shape.base_s, sequence_s, shape.slots)
    return max(1, min(-(-shape.slots // LEAST_BATCH_SHARE), least), fitting)


@compiled
def batch_beside_light(engines, shape, row, now_s):
    """How many may run, all where no tenant has less than its part.

    Who has how much is counted only where it could matter: beside one that has a single request.
    """
    replica = engines.replicas[row]
    mean_tokens = replica.kv / replica.decoding if replica.decoding else 0.0
    sequence_s = shape.decode_s + shape.kv_s * mean_tokens
    fewest = _batch_beside(shape, sequence_s, 1.0)
    if replica.taken < fewest:
        return shape.slots
    light, tenants = lightest(engines, row)
    if light:
        replica.light_alone = max(1.0, light / STRETCH)
        replica.light_until_s = now_s + REMEMBERED_S
    if now_s >= replica.light_until_s:
        return shape.slots
    return max(_batch_beside(shape, sequence_s, replica.light_alone), min(tenants, shape.slots))


@compiled
def _batch_beside(shape, sequence_s, alone):
    light_s = STEP_STRETCH * (shape.base_s + alone * sequence_s)
    return batch_within(shape, light_s, sequence_s, LEAST_TIMES_BASE)


@compiled
def lightest(engines, row):
    """What the tenant has that has least, 0 where it has its part; and how many tenants there are."""
    replica, places, held = engines.replicas[row], engines.slots[row], engines.held
    held[:] = 0
    for place in range(replica.heap):
        _take(held, places[places[place].heap_slot])
    for place in range(replica.behind):
        _take(held, places[places[place].behind])
    least, tenants, furthest = 0, 0, 0
    most_for_part = 0.0
    for tier in range(TIERS):
        total, most = 0, 0
        for count in held[tier]:
            if count:
                tenants += 1
                total += count
                most = max(most, count)
                least = count if least == 0 else min(least, count)
        if total and total / GUARANTEES[tier] >= most_for_part:
            most_for_part, furthest = total / GUARANTEES[tier], most
    is_light = replica.heap + replica.behind >= 3 and furthest - 1 >= least + 1
    return (least if is_light else 0), tenants


@compiled
def _take(held, request):
    held[request.tier, request.tenant] += 1
