"""Batches beside tenants that have little, compiled: as `Pace` and `Places` of the engine have them."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.rules import (
    GUARANTEES,
    LEAST_BATCH_SHARE,
    LIGHT_LEAST_TIMES_BASE,
    LIGHT_REMEMBERED_S,
    STEP_STRETCH,
    STRETCH,
)
from simulator.fleet.state import TIERS


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
def fits_beside_one(base_s, sequences_s, decoding, taken):
    return (taken - STEP_STRETCH) * sequences_s < (STEP_STRETCH - 1.0) * base_s * decoding


@compiled
def batch_beside_light(engines, shape, row, now_s):
    """How many may run, all where no tenant has less than its part.

    Who has how much need not be counted where so many fit in beside one that has a single request
    (`fits_beside_one`).
    """
    replica = engines.replicas[row]
    mean_tokens = replica.kv / replica.decoding if replica.decoding else 0.0
    sequence_s = shape.decode_s + shape.kv_s * mean_tokens
    light, tenants = lightest(engines, row)
    if light:
        replica.light_alone = max(1.0, light / STRETCH)
        replica.light_until_s = now_s + LIGHT_REMEMBERED_S
    if now_s >= replica.light_until_s:
        return shape.slots
    return max(_batch_beside(shape, sequence_s, replica.light_alone), min(tenants, shape.slots))


@compiled
def _batch_beside(shape, sequence_s, alone):
    light_s = STEP_STRETCH * (shape.base_s + alone * sequence_s)
    return batch_within(shape, light_s, sequence_s, LIGHT_LEAST_TIMES_BASE)


@compiled
def lightest(engines, row):
    """What the tenant has that has least, 0 where it has its part; and how many tenants there are."""
    replica, places, tenants_of = engines.replicas[row], engines.slots[row], engines.tenants
    for tier in range(TIERS):
        for tenant in range(tenants_of.shape[1]):
            tenants_of[tier, tenant].counted = 0
    for place in range(replica.heap):
        _take(tenants_of, places[places[place].heap_slot])
    for place in range(replica.behind):
        _take(tenants_of, places[places[place].behind])
    least, least_weight, tenants = 0, 1.0, 0
    furthest, furthest_weight, most_for_part = 0, 1.0, 0.0
    for tier in range(TIERS):
        total, most, most_weight = 0, 0, 1.0
        for tenant in range(tenants_of.shape[1]):
            count, weight = tenants_of[tier, tenant].counted, tenants_of[tier, tenant].weight
            if count == 0:
                continue
            tenants += 1
            total += count
            if count * most_weight > most * weight:
                most, most_weight = count, weight
            if least == 0 or count * least_weight < least * weight:
                least, least_weight = count, weight
        if total and total / GUARANTEES[tier] >= most_for_part:
            most_for_part, furthest, furthest_weight = total / GUARANTEES[tier], most, most_weight
    could_give = (furthest - 1) / furthest_weight >= (least + 1) / least_weight
    return (least if could_give and replica.heap + replica.behind >= 3 else 0), tenants


@compiled
def _take(tenants_of, request):
    tenants_of[request.tier, request.tenant].counted += 1
