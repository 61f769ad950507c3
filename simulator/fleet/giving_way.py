"""Better tiers take places of worse ones in a replica, compiled: as the engine's scheduler preempts."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.ends import take_end
from simulator.fleet.rules import GUARANTEES

NOBODY = -1


@compiled
def make_way(engines, row, batch, room):
    """How many of those behind, from the place `room` on, run because others were preempted for them."""
    replica, places = engines.replicas[row], engines.slots[row]
    taken = 0
    while room + taken < replica.behind:
        tier = places[places[room + taken].behind].tier
        if replica.batch + (replica.standard if tier == 0 else 0) == 0 or tier == len(GUARANTEES) - 1:
            break
        victim = victim_for(engines, row, tier, batch, room + taken)
        if victim == NOBODY:
            break
        preempt(engines, row, victim)
        taken += 1
    return taken


@compiled
def victim_for(engines, row, tier, batch, room):
    """`victim_for` of the engine's batch, where it is of a worse tier: the place of its end in the heap."""
    replica, places = engines.replicas[row], engines.slots[row]
    last, taking, giving = NOBODY, 0, 0
    for place in range(replica.heap):
        request = places[places[place].heap_slot]
        taking += request.tier == tier
        if last != NOBODY:
            worst = places[places[last].heap_slot]
            if request.tier < worst.tier or (request.tier == worst.tier and request.at_s < worst.at_s):
                giving += request.tier == worst.tier
                continue
            giving = giving if request.tier == worst.tier else 0
        last = place
        giving += 1
    if last == NOBODY:
        return NOBODY
    worst_tier = places[places[last].heap_slot].tier
    for place in range(room):
        joining = places[places[place].behind].tier
        taking += joining == tier
        giving += joining == worst_tier
    shared = max(1, min(batch, replica.decoding + room))
    can_spare = giving - 1 >= GUARANTEES[worst_tier] * shared
    is_below = taking < GUARANTEES[tier] * shared
    return last if worst_tier > tier and (can_spare or is_below) else NOBODY


@compiled
def preempt(engines, row, place):
    """What it had computed is found again but for its last token; it waits in the order in which it came."""
    replica, places = engines.replicas[row], engines.slots[row]
    left = places[place].heap_step - replica.step
    slot = take_end(engines, row, place)
    request = places[slot]
    request.done = request.output - left
    request.lacking = 1
    replica.decoding -= 1
    replica.kv -= request.prompt + request.done - 1
    replica.lacking += 1
    at = replica.behind + replica.arrived
    while at > 0 and _is_before(request, places[places[at - 1].behind], at > replica.behind):
        places[at].behind = places[at - 1].behind
        at -= 1
    places[at].behind = slot
    replica.behind += 1


@compiled
def _is_before(request, other, has_just_come):
    return has_just_come or (request.tier, request.at_s) < (other.tier, other.at_s)
