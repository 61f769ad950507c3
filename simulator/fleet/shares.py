"""Who may take more of a cell, compiled: as the router's `Allocation`, `Places` and `Running` decide it."""

from __future__ import annotations

import math

from simulator.fleet.compiling import compiled
from simulator.fleet.rules import (
    BORROW_CAP,
    CACHE_SHARE,
    COUNTED,
    GUARANTEES,
    LEFT_PART,
    PATIENT_PART,
    ROOTS,
    TIER_REMEMBERED_S,
    URGENT_S,
)
from simulator.fleet.state import CACHE, ENDS_PER_S, ENDS_S, IS_SHARING, NOW, SLOTS, TIERS


@compiled
def in_flight(engines):
    """Requests, and the cache that they are to have."""
    taken, held = 0, 0
    for tier in range(TIERS):
        taken += engines.tiers[tier].taken
        held += engines.tiers[tier].held
    return taken, held


@compiled
def given_out(cell):
    """Of the cache: the rest is for answers that are longer than expected."""
    return max(CACHE_SHARE * cell.clock[CACHE], 1.0)


@compiled
def fits(cell, router, need):
    """`fits` of the router; while routers cannot tell one another, each knows of its own alone."""
    taken, held = in_flight(cell.engines)
    if cell.clock[IS_SHARING] == 0:
        taken, held = 0, 0
        for view in cell.engines.views[router]:
            taken += view.slots
            held += view.tokens
    return taken == 0 or (taken < cell.clock[SLOTS] and held + need <= given_out(cell))


@compiled
def part_of(cell, taken, held):
    """Of all there is: slots, or cache where that is more."""
    return max(taken / max(cell.clock[SLOTS], 1.0), held / given_out(cell))


@compiled
def is_guaranteed(cell, tier):
    """Whether the tier has less than its share."""
    mine = cell.engines.tiers[tier]
    return part_of(cell, mine.taken, mine.held) < GUARANTEES[tier]


@compiled
def is_last_kept(cell, tier):
    """Whether the last of it is for better tiers: they had requests of late."""
    for better in range(tier):
        if cell.clock[NOW] - cell.queue.tiers[better].asked_s <= TIER_REMEMBERED_S:
            return True
    return False


@compiled
def is_open(cell, tier):
    """Whether the tier may begin one more."""
    if tier == 0 or is_guaranteed(cell, tier) or not is_last_kept(cell, tier):
        return True
    taken, held = in_flight(cell.engines)
    return part_of(cell, taken, held) < BORROW_CAP


@compiled
def left_slots(cell, tier):
    """That the tier may take: free ones, or what is left of the cache where that is less."""
    taken, held = in_flight(cell.engines)
    used, mine = part_of(cell, taken, held), cell.engines.tiers[tier]
    left = 1.0 - used
    if is_last_kept(cell, tier):
        own = GUARANTEES[tier] - part_of(cell, mine.taken, mine.held)
        left = min(left, max(BORROW_CAP - used, own))
    return left * cell.clock[SLOTS]


@compiled
def is_held_back(cell, shape, tier, tenant, need):
    """`lacking` of the router: those of a tier who have most leave headroom to who has less."""
    clock, tenants = cell.clock, cell.engines.tenants
    mine, most = tenants[tier, tenant], math.floor(LEFT_PART * clock[SLOTS])
    slot_tokens = given_out(cell) / max(clock[SLOTS], 1.0)
    size, left = max(need / slot_tokens, 1.0), left_slots(cell, tier)
    if mine.taken == 0 or most == 0 or left >= most + size:
        return False
    has, furthest, of_less = size_of(mine, slot_tokens) / mine.weight, 0.0, 0.0
    for other in range(tenants.shape[1]):
        theirs = tenants[tier, other]
        furthest = max(furthest, size_of(theirs, slot_tokens) / theirs.weight)
        if size_of(theirs, slot_tokens) / theirs.weight < has:
            of_less += size_of(theirs, slot_tokens)
    to_leave = min(ROOTS * math.sqrt(of_less) * (has / furthest) ** 2, most)
    freed = clock[ENDS_PER_S] / ENDS_S * shape.first_token_s[tier]
    return to_leave > 0.0 and to_leave * to_leave / (to_leave + COUNTED * freed) + size > left


@compiled
def size_of(holder, slot_tokens):
    """What a tenant has, in slots: each stands for its share of the cache."""
    return max(holder.taken, holder.held / slot_tokens)


@compiled
def displaces(cell, shape, tier, tenant, waited_s):
    """Whether it begins beside all that there is room for: its tenant has less than its part."""
    patience_s = shape.first_token_s[tier]
    if patience_s > URGENT_S and waited_s < PATIENT_PART * patience_s:
        return False
    return is_light(cell.engines, tier, tenant) or has_giver(cell, tier, tenant)


@compiled
def is_light(engines, tier, tenant):
    return engines.tenants[tier, tenant].weight > 1.0


@compiled
def has_giver(cell, tier, tenant):
    """`giver` of `Places`: in a better tier above its guarantee, or in its own whoever has more."""
    tiers, tenants = cell.engines.tiers, cell.engines.tenants
    limit = max(min(in_flight(cell.engines)[0], cell.clock[SLOTS]), 1.0)
    if tiers[tier].taken < GUARANTEES[tier] * limit:
        for better in range(tier):
            if tiers[better].taken - 1 >= GUARANTEES[better] * limit:
                return True
    wanted = (tenants[tier, tenant].taken + 1) / tenants[tier, tenant].weight
    for other in range(tenants.shape[1]):
        theirs = tenants[tier, other]
        if other != tenant and (theirs.taken - 1) / theirs.weight >= wanted:
            return True
    return False
