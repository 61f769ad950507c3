"""The gates of all releases, and the capacity of each."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.capacity import UNKNOWN, UNLIMITED, BatchShape, of_batches, of_engines, with_slots
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.gate import Gate
from router.admission.policy import FirstCome
from router.core.manifest import Kind
from router.core.rounds import every
from router.routing.pools import answering
from router.triton.control import ControlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.costs.batch_cost import BatchCost
    from python_backend.wire.tiers import Tier
    from router.admission.capacity import Capacity
    from router.admission.gate import Watcher
    from router.admission.policy import Policy
    from router.admission.queue import Shares
    from router.core.objective import Objective
    from router.routing.replicas import Fleet, Replica, ReplicaSet


REFRESH_EVERY_S = 0.2
_LOOK_FOR_SHAPES_S = 1.0
# How a model batches rows changes only with its files; where Triton gave no answer, it is asked again.
_SHAPE_LASTS_S = 60.0
_ASK_AGAIN_S = 5.0
# Of its slots: what a release may have in flight and still take optional work.
_SPARE_UP_TO = 0.8
_UNKNOWN_CAPACITY = "the capacity of the releases could not be determined"


class Gates(dict[tuple[str, str], Gate]):
    """One a router: by model and release, each from the first time on that it is asked for.

    `is_served` tells of a model and its release whether that stays: one that goes is sent all that waits for
    it at once, for Triton finishes what it has before it unloads a model, and knows of nothing else.
    `share_of` tells, by the name of a release, this router's share of its capacity, where others use it too.
    `batch_cost_of` tells, by the name of a release, the learned cost of a batch model.
    """

    def __init__(
        self,
        fleet: Fleet,
        new_policy: Callable[[], Policy],
        objective_of: Callable[[str, Tier], Objective],
        slots: int = 0,
        batch_cost_of: Callable[[str], BatchCost | None] = lambda release: None,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_served: Callable[[str, str], bool] = lambda model, release: True,
        share_of: Callable[[str, Capacity], Capacity] = lambda release, capacity: capacity,
    ) -> None:
        super().__init__()
        self._fleet = fleet
        self._new_policy = new_policy
        self._objective_of = objective_of
        self._slots = slots
        self._batch_cost_of = batch_cost_of
        self._is_served = is_served
        self._share_of = share_of
        self._watcher = watcher
        self._clock = clock
        self._shapes: dict[str, tuple[float, BatchShape | None]] = {}  # until when, by the release's name

    def __missing__(self, key: tuple[str, str]) -> Gate:
        name = "@".join(key)
        replicas = self._fleet.sets.get(name)
        is_fixed_cost = replicas is not None and replicas.manifest.kind is not Kind.TEXT
        policy = self._new_policy()
        gate = Gate(*key, policy, self._objective_of, is_fixed_cost, self._watcher, self._clock)
        self[key] = gate
        gate.resize(self._share_of(name, self._capacity(replicas, UNKNOWN)))
        return gate

    def _among(self, key: tuple[str, str], capacity: Capacity) -> Capacity:
        """What is left of an engine beside the others that it computes: a model and its adapters.

        Each may have an equal part while they are busy, and what the others do not use.
        """
        engine = self._engine_of(key)
        others = [gate for other, gate in self.items() if other != key and self._engine_of(other) == engine]
        busy = [gate for gate in others if gate.open_count]
        if not engine or not busy or capacity.slots >= UNLIMITED:
            return capacity
        equal = max(capacity.slots_here // (len(busy) + 1), 1)
        left = capacity.slots_here - sum(gate.taken_slots for gate in busy)
        return replace(capacity, own_slots=max(equal, left))

    def _engine_of(self, key: tuple[str, str]) -> str:
        replicas = self._fleet.sets.get("@".join(key))
        return "" if replicas is None else replicas.manifest.engine

    def has_room(self, model: str, *releases: str) -> bool:
        """Whether these can take optional work: nobody waits for them, and slots are free."""
        for release in releases:
            gate = self.get((model, release))
            if gate is not None and (
                gate.waiting_count or gate.taken_slots > _SPARE_UP_TO * gate.capacity.slots_here
            ):
                return False
        return True

    def drain(self) -> None:
        """Ends all waiting: the router is going down."""
        for gate in self.values():
            gate.cut_waiting(InflightError(ErrorKind.OVERLOADED, "the server is shutting down"))

    def close(self) -> None:
        for gate in self.values():
            gate.close()

    # Capacity

    async def run(self) -> None:
        """For as long as the router runs. A silent Triton delays no other release's capacity."""
        await asyncio.gather(
            every(REFRESH_EVERY_S, self.refresh, _UNKNOWN_CAPACITY),
            every(_LOOK_FOR_SHAPES_S, self.learn_shapes, _UNKNOWN_CAPACITY),
        )

    def refresh(self) -> None:
        for key, gate in list(self.items()):
            name = "@".join(key)
            replicas = self._fleet.sets.get(name)
            if replicas is None:
                self._shapes.pop(name, None)  # a later release of this name may be another
            if replicas is None and gate.open_count == 0:
                gate.close()
                del self[key]
            else:
                stays = self._is_served(*key)
                capacity = self._capacity(replicas, gate.capacity) if stays else UNKNOWN
                gate.resize(self._among(key, self._share_of(name, capacity)))

    async def learn_shapes(self) -> None:
        """Asks Triton how batch models batch rows."""
        fixed = [
            self._fleet.sets.get(f"{gate.model}@{gate.release}")
            for gate in self.values()
            if gate.is_fixed_cost
        ]
        await asyncio.gather(*(self._learn_shape(replicas) for replicas in fixed if replicas is not None))

    def _capacity(self, replicas: ReplicaSet | None, former: Capacity) -> Capacity:
        """Where no replica is open and none comes back, no limit is applied: the request fails by itself.

        While one comes back, and until its engine has reported, its last known capacity holds: else all that
        wait would be sent to it at once.
        """
        if replicas is None:
            return UNKNOWN
        able = [replica for replica in replicas.replicas if replica.is_open]
        if not able:
            return former if replicas.is_coming_back else UNKNOWN
        if replicas.manifest.kind is Kind.TEXT:
            able = list(answering(able))
            is_unheard = all(replica.report is None and replica.reported_s == -inf for replica in able)
            if is_unheard and former.slots < UNLIMITED:
                return former
            capacity = of_engines([replica.report for replica in able])
        else:
            name = replicas.manifest.name
            _, shape = self._shapes.get(name, (0.0, None))
            capacity = of_batches(len(able), shape, self._batch_cost_of(name))
        return with_slots(capacity, self._slots)

    async def _learn_shape(self, replicas: ReplicaSet) -> None:
        now_s = self._clock()
        name = replicas.manifest.name
        until_s, shape = self._shapes.get(name, (-1.0, None))
        replica = next((each for each in replicas.replicas if each.is_open), None)
        if now_s < until_s or replica is None:
            return
        found = await _shape_of(replica) or shape
        lasts_s = _ASK_AGAIN_S if found is None else _SHAPE_LASTS_S
        self._shapes[name] = self._clock() + lasts_s, found


async def _shape_of(replica: Replica) -> BatchShape | None:
    try:
        return batch_shape(await replica.server.control.config(replica.manifest.entry))
    except ControlError:
        return None


def batch_shape(config: Any) -> BatchShape:
    """By a ModelConfig as Triton completed it; an ensemble has no instances of its own."""
    is_ensemble = config.platform == "ensemble"
    instances = sum(max(group.count, 1) * max(len(group.gpus), 1) for group in config.instance_group)
    decoupled = bool(config.model_transaction_policy.decoupled)
    return BatchShape(int(config.max_batch_size), 0 if is_ensemble else max(instances, 1), decoupled)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """`slots` of each release: 0 is as many as its engines have, -1 no limit."""

    policy: Literal["objectives", "first_come"] = "objectives"
    slots: int = 0


def build_gates(
    settings: AdmissionSettings,
    fleet: Fleet,
    shares: Shares,
    objective_of: Callable[[str, Tier], Objective],
    watcher: Watcher | None = None,
    *,
    batch_cost_of: Callable[[str], BatchCost | None],
    is_served: Callable[[str, str], bool],
    share_of: Callable[[str, Capacity], Capacity],
) -> Gates:
    def new_policy() -> Policy:
        if settings.policy == "first_come":
            return FirstCome(settings.slots)
        return Dispatcher(shares, OutputLengths())

    return Gates(
        fleet,
        new_policy,
        objective_of,
        settings.slots,
        batch_cost_of=batch_cost_of,
        watcher=watcher,
        is_served=is_served,
        share_of=share_of,
    )
