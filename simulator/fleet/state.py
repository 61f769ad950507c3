"""What a cell holds while it is simulated: arrays of records, which compiled code and Python share.

A cell is the replicas of one model in one zone, and the routers before them. A slot is one request in an
engine. Requests that wait for a turn are in lanes, one for each tier and tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from simulator.slowness import AS_USUAL, Slowness

Array = NDArray[Any]

TIERS = len(Tier)
ALL = TIERS  # together, behind the tiers
CLOSED, STARTING, OPEN, DRAINING, DOWN = range(5)
# Histograms: the first bin ends here, each other one is wider than the one before by the same factor.
FIRST_BIN_S, BIN_FACTOR, BINS = 0.001, 1.04, 320
# More than an engine runs at once may be sent to it, where routers do not know of one another.
_OVERFULL = 2
# Requests that wait for a turn, and clients that wait for their retry, at most.
_WAITING = 1 << 16
# Answers that ended in about so long tell how many do in a second.
ENDS_S = 5.0
# Places in the clock; slots and cache are those of open replicas, as they told last.
NOW, ARRIVAL, PUBLISHING, ENDS_PER_S, ASKED, LATE = range(6)
IS_SHARING, IS_TRACED, COUNTED_FROM, SLOTS, CACHE = range(6, 11)


def _record(whole: str, real: str = "") -> np.dtype[Any]:
    fields = [(name, np.int64) for name in whole.split()] + [(name, np.float64) for name in real.split()]
    return np.dtype(fields, align=True)


# `kv` is what those who decode read in a step, `announced` the batch that keeps the inter-token objective,
# `lacking` prompt tokens still to compute. Those `behind` lack some of their prompt; the last of them,
# `arrived`, came since the latest step was planned; the first of these is in the next step where it is
# `awaited`. Until `light_until_s` a tenant has little, `light_alone` of what it would have under way alone.
REPLICA = _record(
    "phase run_steps run_prefill step decoding kv taken announced lacking behind arrived awaited heap "
    "free begun interactive standard batch",
    "began_s step_s growth_s busy_s light_alone light_until_s",
)
# Beside a request's own figures each place of a replica has one of its three lists: those behind by rank, the
# heap of ends, and the free slots. `done` is what a preempted one has of its answer.
SLOT = _record(
    "tier tenant prompt output done lacking given attempt router behind heap_step heap_slot free",
    "at_s first_s left falls",
)
# What a router has in flight on a replica: its tokens; those `left`, less what that `falls` with each of the
# replica's steps; and what was left when it last told the others.
VIEW = _record("tokens slots", "left falls told")
# What tenants, or tiers, have in flight, and the cache that this is to have; on one replica it is `counted`.
HOLDER = _record("taken held counted", "weight")
LANE = _record("head tail waiting", "turn weight asked_s")
ENTRY = _record("next free prompt output attempt home", "at_s first_s turn_s")
RETRY = _record("tier tenant prompt output attempt", "at_s")
LENGTHS = _record("prompt output tier tenant home", "at_s")
PERIOD = _record("offered good refused failed late slow tokens", "work_s")
TENANT = _record("offered good")
FREE, WAITING, REQUESTS, RETRIES, DRAWN = range(5)  # places in the counts of a queue


class Shape(NamedTuple):
    """Of all replicas of a cell, in seconds. `is_prefilled` ones decode what others have prefilled.

    `depth` is how many steps may be in flight: with 2, as on a GPU, a step is planned before another is over.
    """

    base_s: float
    prefill_s: float
    decode_s: float
    kv_s: float
    slots: int
    step_tokens: int
    kv_tokens: int
    overhead_s: float
    first_token_s: Array
    inter_token_s: Array  # inf where a tier has no objective
    weights: Array
    retries: int
    publish_s: float
    is_prefilled: bool
    depth: int
    tokens_s: Array  # what a step of one, two, three … tokens takes, where each does not take as much
    even_context: float  # a prompt's token takes twice as long behind so many
    slower: Array  # how many times as long steps take, for `slower_every_s` each from `slower_from_s` on
    slower_every_s: float
    slower_from_s: float


class Engines(NamedTuple):
    """`next_s` is when the run of alike steps under way ends, inf for none; `told` sums over routers.

    `tenants` are by tier: their weights, and what they have; `tiers` have the sums.
    """

    replicas: Array
    next_s: Array
    slots: Array
    views: Array
    told: Array
    is_up: Array  # routers
    tenants: Array
    tiers: Array


class Queue(NamedTuple):
    """Lanes are linked lists in one pool. A turn is a virtual counter: who had how much for its weight."""

    lanes: Array
    tiers: Array
    entries: Array
    retries: Array
    counts: Array


class Stats(NamedTuple):
    """`periods` are by tier too; `times` are histograms of first tokens and of the time between tokens."""

    periods: Array
    tenants: Array
    times: Array


class Cell(NamedTuple):
    engines: Engines
    queue: Queue
    stats: Stats
    lengths: Array
    clock: Array
    chance: Array


@dataclass(frozen=True)
class ReplicaShape:
    """One replica of a model, as profiles describe it."""

    cost: StepCost
    slots: int
    step_tokens: int
    kv_tokens: int
    is_prefilled: bool = False
    depth: int = 2
    even_context: int | None = None
    slowness: Slowness = AS_USUAL


def _rows(size: int | tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Fields are attributes, in compiled code and in Python alike."""
    return np.zeros(size, dtype).view(np.recarray)


def sample(prompt: Array, output: Array, tier: Array, tenant: Array, at_s: Array | float = 0.0) -> Array:
    """Requests to draw from, or to send one after the other; where `home` is -1 that is left to chance."""
    made = _rows(len(prompt), LENGTHS)
    made["at_s"], made["home"] = at_s, -1
    made["prompt"], made["output"], made["tier"], made["tenant"] = prompt, output, tier, tenant
    return made


def new_cell(
    shape: Shape, lengths: Array, replicas: int, most: int, routers: int, periods: int, seed: int
) -> Cell:
    """`replicas` open ones, and room for as many as `most`."""
    places = _OVERFULL * shape.slots
    tenants = int(lengths["tenant"].max()) + 1
    rows = _rows(most, REPLICA)
    rows["phase"][:replicas] = OPEN
    rows["announced"], rows["free"] = shape.slots, places
    slots = _rows((most, places), SLOT)
    slots["free"] = np.arange(places)
    lanes = _rows(TIERS * tenants, LANE)
    lanes["weight"] = 1.0
    tiers = _rows(TIERS, LANE)
    tiers["weight"], tiers["asked_s"] = shape.weights, -np.inf
    entries = _rows(_WAITING, ENTRY)
    entries["free"] = np.arange(_WAITING)
    counts = np.array([_WAITING, 0, 0, 0, 0], np.int64)
    views, told = _rows((routers, most), VIEW), _rows(most, VIEW)
    clock = np.zeros(CACHE + 1)
    clock[IS_SHARING], clock[SLOTS], clock[CACHE] = 1.0, replicas * shape.slots, replicas * shape.kv_tokens
    is_up, holders = np.ones(routers, np.int64), _rows((TIERS, tenants), HOLDER)
    holders["weight"] = 1.0
    return Cell(
        Engines(rows, np.full(most, np.inf), slots, views, told, is_up, holders, _rows(ALL + 1, HOLDER)),
        Queue(lanes, tiers, entries, _rows(_WAITING, RETRY), counts),
        Stats(
            _rows((periods, TIERS), PERIOD),
            _rows(tenants, TENANT),
            np.zeros((2, TIERS, BINS), np.int64),
        ),
        lengths,
        clock,
        np.array([1 + seed % 2147483562, 1 + (seed * 48271 + 11) % 2147483398], np.int64),
    )
