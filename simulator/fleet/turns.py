"""Whose turn it is, compiled: lanes by tier and tenant, with the counters of the router's fair queue."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.state import FREE, RETRIES, TIERS, WAITING


@compiled
def tenants_of(queue):
    return len(queue.lanes) // TIERS


@compiled
def join(queue, number, at_s, first_s, prompt, output, attempt, home):
    """False where there is no room for another: it is refused."""
    if queue.counts[FREE] == 0:
        return False
    lane, tier = queue.lanes[number], queue.tiers[number // tenants_of(queue)]
    queue.counts[FREE] -= 1
    place = queue.entries[queue.counts[FREE]].free
    entry = queue.entries[place]
    entry.at_s, entry.first_s, entry.prompt, entry.output = at_s, first_s, prompt, output
    entry.attempt, entry.home, entry.next, entry.turn_s = attempt, home, -1, -1.0
    if queue.counts[WAITING] and tier.waiting == 0:
        _lift(queue.tiers, 0, TIERS, tier)
    if tier.waiting and lane.waiting == 0:
        first = number // tenants_of(queue) * tenants_of(queue)
        _lift(queue.lanes, first, first + tenants_of(queue), lane)
    if lane.waiting == 0:
        lane.head = place
    else:
        queue.entries[lane.tail].next = place
    lane.tail = place
    lane.waiting += 1
    tier.waiting += 1
    queue.counts[WAITING] += 1
    return True


@compiled
def _lift(lanes, first, end, lane):
    """Who comes back from idleness begins level with those that wait."""
    other = least_served(lanes, first, end)
    lane.turn = max(lane.turn, lanes[other].turn)


@compiled
def least_served(lanes, first, end):
    """Of the lanes in which somebody waits, the one that had least for its weight; -1 if there is none."""
    least = -1
    for other in range(first, end):
        if lanes[other].waiting and (least < 0 or lanes[other].turn < lanes[least].turn):
            least = other
    return least


@compiled
def next_tier(tiers, tried):
    """Of the tiers in which somebody waits, the one that has had least, but for those tried; -1 for none."""
    least = -1
    for tier in range(TIERS):
        is_one = tiers[tier].waiting and not tried >> tier & 1
        if is_one and (least < 0 or tiers[tier].turn < tiers[least].turn):
            least = tier
    return least


@compiled
def next_lane(queue, tier):
    """Of those of a tier that wait, the tenant that has had least; -1 for none."""
    return least_served(queue.lanes, tier * tenants_of(queue), (tier + 1) * tenants_of(queue))


@compiled
def leave(queue, number):
    """The first of a lane."""
    lane = queue.lanes[number]
    place = lane.head
    lane.head = queue.entries[place].next
    lane.waiting -= 1
    queue.tiers[number // tenants_of(queue)].waiting -= 1
    queue.counts[WAITING] -= 1
    queue.entries[queue.counts[FREE]].free = place
    queue.counts[FREE] += 1


@compiled
def charge(queue, number, cost_s):
    lane, tier = queue.lanes[number], queue.tiers[number // tenants_of(queue)]
    tier.turn += cost_s / tier.weight
    lane.turn += cost_s / lane.weight


@compiled
def copy_retry(retries, target, source):
    new, old = retries[target], retries[source]
    new.at_s, new.tier, new.tenant = old.at_s, old.tier, old.tenant
    new.prompt, new.output, new.attempt = old.prompt, old.output, old.attempt


@compiled
def push_retry(queue, at_s, tier, tenant, prompt, output, attempt):
    """A client that comes back, in a heap by time; those beyond what it holds give up."""
    retries, place = queue.retries, queue.counts[RETRIES]
    if place >= len(retries) - 1:
        return
    queue.counts[RETRIES] += 1
    while place > 0 and retries[(place - 1) >> 1].at_s > at_s:
        copy_retry(retries, place, (place - 1) >> 1)
        place = (place - 1) >> 1
    new = retries[place]
    new.at_s, new.tier, new.tenant = at_s, tier, tenant
    new.prompt, new.output, new.attempt = prompt, output, attempt


@compiled
def pop_retry(queue):
    """Takes the earliest out; returns where it lies until the next one is pushed or popped."""
    retries = queue.retries
    queue.counts[RETRIES] -= 1
    count, spare = queue.counts[RETRIES], len(retries) - 1
    copy_retry(retries, spare, 0)
    place, at_s = 0, retries[count].at_s
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and retries[below + 1].at_s < retries[below].at_s:
            below += 1
        if retries[below].at_s >= at_s:
            break
        copy_retry(retries, place, below)
        place = below
    copy_retry(retries, place, count)
    return spare
