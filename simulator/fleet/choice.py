"""Which router a request comes to, and which replica that one sends it to, compiled."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.state import IS_SHARING, OPEN

NOBODY = -1


@compiled
def chance(cell):
    """Above 0, below 1, by L'Ecuyer's combined generator: the same for the same seed everywhere."""
    cell.chance[0] = 40014 * cell.chance[0] % 2147483563
    cell.chance[1] = 40692 * cell.chance[1] % 2147483399
    return ((cell.chance[0] - cell.chance[1]) % 2147483562 + 1) / 2147483563.0


@compiled
def router_of(is_up, number):
    """Balancers send requests to the routers that are up, in turn."""
    for offset in range(len(is_up)):
        router = (number + offset) % len(is_up)
        if is_up[router]:
            return router
    return NOBODY


@compiled
def load_of(engines, router, row, is_sharing):
    """Tokens that a replica has to do, as far as the router knows; -1 where it takes no more.

    What a router knows of the others is what they told last; it knows nothing of them while they cannot.
    """
    replica, view = engines.replicas[row], engines.views[router, row]
    if replica.phase != OPEN or replica.free == 0:
        return -1
    return view.tokens + (engines.told[row].tokens - view.told_tokens if is_sharing else 0)


@compiled
def least_loaded(engines, router, is_sharing):
    """`choose` of the router without a key."""
    best, least, least_begun = NOBODY, 0, 0
    for row in range(len(engines.replicas)):
        tokens, begun = load_of(engines, router, row, is_sharing), engines.replicas[row].begun
        is_less = tokens < least or (tokens == least and begun < least_begun)
        if tokens >= 0 and (best == NOBODY or is_less):
            best, least, least_begun = row, tokens, begun
    return best


@compiled
def chosen_replica(cell, router, prompt):
    """`choose` of the router: every prompt has an opening of its own, which belongs to one by chance."""
    engines, is_sharing = cell.engines, cell.clock[IS_SHARING] > 0
    best = least_loaded(engines, router, is_sharing)
    if best == NOBODY:
        return NOBODY
    least = load_of(engines, router, best, is_sharing)
    home = int(chance(cell) * len(engines.replicas))
    tokens = load_of(engines, router, home, is_sharing)
    return home if 0 <= tokens <= least + max(prompt, least // 4) else best


@compiled
def publish(engines):
    """Routers tell each other what they have in flight."""
    for row in range(len(engines.told)):
        told = engines.told[row]
        told.tokens = 0
        for router in range(len(engines.is_up)):
            view = engines.views[router, row]
            view.told_tokens = view.tokens
            told.tokens += view.tokens
