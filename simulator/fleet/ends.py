"""When the answers of a replica end, compiled: a heap of the steps at which they do."""

from __future__ import annotations

from simulator.fleet.compiling import compiled


@compiled
def push_end(engines, row, step, slot):
    replica, places = engines.replicas[row], engines.slots[row]
    place = replica.heap
    replica.heap += 1
    while place > 0:
        above = (place - 1) >> 1
        if places[above].heap_step <= step:
            break
        places[place].heap_step = places[above].heap_step
        places[place].heap_slot = places[above].heap_slot
        place = above
    places[place].heap_step, places[place].heap_slot = step, slot


@compiled
def take_end(engines, row, place):
    """Of one that does not end then; which it is."""
    places = engines.slots[row]
    slot = places[place].heap_slot
    while place > 0:
        above = (place - 1) >> 1
        places[place].heap_step = places[above].heap_step
        places[place].heap_slot = places[above].heap_slot
        place = above
    places[0].heap_slot = slot
    return pop_end(engines, row)


@compiled
def pop_end(engines, row):
    replica, places = engines.replicas[row], engines.slots[row]
    slot = places[0].heap_slot
    replica.heap -= 1
    count = replica.heap
    key, value = places[count].heap_step, places[count].heap_slot
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and places[below + 1].heap_step < places[below].heap_step:
            below += 1
        if places[below].heap_step >= key:
            break
        places[place].heap_step = places[below].heap_step
        places[place].heap_slot = places[below].heap_slot
        place = below
    places[place].heap_step, places[place].heap_slot = key, value
    return slot
