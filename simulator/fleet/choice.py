"""Which router a request comes to, and which replica that one sends it to, compiled."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.state import IS_SHARING, NOW, OPEN
from simulator.fleet.steps import steps_told

NOBODY = -1


@compiled
def chance(cell):
    """Above 0, below 1, by L'Ecuyer's combined generator: the same for the same seed everywhere."""
    cell.chance[0] = 40014 * cell.chance[0] % 2147483563
    cell.chance[1] = 40692 * cell.chance[1] % 2147483399
    return ((cell.chance[0] - cell.chance[1]) % 2147483562 + 1) / 2147483563.0


@compiled
def any_replica(cell):
    """Every prompt has an opening of its own, which belongs to one by chance."""
    return int(chance(cell) * len(cell.engines.replicas))


@compiled
def router_of(is_up, number):
    """Balancers send requests to the routers that are up, in turn."""
    for offset in range(len(is_up)):
        router = (number + offset) % len(is_up)
        if is_up[router]:
            return router
    return NOBODY


@compiled
def left_of(engines, router, row, now_s):
    """`outstanding_tokens` of a router's replica: prompts until their first tokens, and what answers lack."""
    view = engines.views[router, row]
    return view.left - view.falls * steps_told(engines, row, now_s) if view.falls else view.left


@compiled
def load_of(cell, router, row):
    """Tokens that a replica has to do, as far as the router knows; -1 where it takes no more.

    What a router knows of the others is what they told last; it knows nothing of them while they cannot.
    """
    engines, clock = cell.engines, cell.clock
    if engines.replicas[row].phase != OPEN or engines.replicas[row].free == 0:
        return -1.0
    others = engines.told[row].told - engines.views[router, row].told if clock[IS_SHARING] > 0 else 0.0
    return max(left_of(engines, router, row, clock[NOW]) + others, 0.0)


@compiled
def least_loaded(cell, router):
    """`choose` of the router without a key."""
    best, least, least_begun = NOBODY, 0.0, 0
    for row in range(len(cell.engines.replicas)):
        tokens, begun = load_of(cell, router, row), cell.engines.replicas[row].begun
        is_less = tokens < least or (tokens == least and begun < least_begun)
        if tokens >= 0 and (best == NOBODY or is_less):
            best, least, least_begun = row, tokens, begun
    return best


@compiled
def chosen_replica(cell, router, prompt, home):
    """`choose` of the router, for a prompt whose opening belongs to `home`."""
    best = least_loaded(cell, router)
    if best == NOBODY:
        return NOBODY
    least = load_of(cell, router, best)
    return home if 0 <= load_of(cell, router, home) <= least + max(prompt, least // 4) else best


@compiled
def publish(engines, now_s):
    """Routers tell each other what they have in flight."""
    for row in range(len(engines.told)):
        told = engines.told[row]
        told.told = 0.0
        for router in range(len(engines.is_up)):
            view = engines.views[router, row]
            view.told = left_of(engines, router, row, now_s)
            told.told += view.told
