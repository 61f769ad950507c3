"""Who may take more of a cell, compiled: as the router's `Allocation` and `Places` decide it."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.rules import (
    BORROW_CAP,
    CACHE_SHARE,
    GUARANTEES,
    PATIENT_PART,
    TIER_REMEMBERED_S,
    URGENT_S,
)
from simulator.fleet.state import ALL, CACHE, IS_SHARING, NOW, SLOTS


@compiled
def given_out(cell):
    """Of the cache: the rest is for answers that are longer than expected."""
    return max(CACHE_SHARE * cell.clock[CACHE], 1.0)


@compiled
def fits(cell, router, need):
    """`fits` of the router; while routers cannot tell one another, each knows of its own alone."""
    taken, held = cell.engines.tiers[ALL].taken, cell.engines.tiers[ALL].held
    if cell.clock[IS_SHARING] == 0:
        taken, held = 0, 0
        for view in cell.engines.views[router]:
            taken += view.slots
            held += view.tokens
    return taken == 0 or (taken < cell.clock[SLOTS] and held + need <= given_out(cell))


@compiled
def part_of(cell, tier):
    """What a tier has of all there is: of slots, or of the cache where that is more."""
    mine = cell.engines.tiers[tier]
    return max(mine.taken / max(cell.clock[SLOTS], 1.0), mine.held / given_out(cell))


@compiled
def is_guaranteed(cell, tier):
    """Whether the tier has less than its share."""
    return part_of(cell, tier) < GUARANTEES[tier]


@compiled
def is_open(cell, tier):
    """Whether the tier may begin one more: the last is kept for better tiers that had requests of late."""
    if tier == 0 or is_guaranteed(cell, tier) or part_of(cell, ALL) < BORROW_CAP:
        return True
    for better in range(tier):
        if cell.clock[NOW] - cell.queue.tiers[better].asked_s <= TIER_REMEMBERED_S:
            return False
    return True


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
    limit = max(min(tiers[ALL].taken, cell.clock[SLOTS]), 1.0)
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
