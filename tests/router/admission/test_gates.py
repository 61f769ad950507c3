"""What the gates let through follows the replicas, their engines and what Triton says of a model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import Any, cast

import pytest
from tritonclient.grpc import model_config_pb2

from python_backend.costs.batch_cost import BatchCost
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.admission.capacity import UNKNOWN, UNLIMITED, BatchShape, Capacity
from router.admission.demand import Demand, Need, Progress, QueueEntry, Refused
from router.admission.gate import Gate
from router.admission.gates import Gates, batch_shape
from router.admission.policy import FirstCome
from router.core.manifest import Kind, Manifest
from router.core.objective import Objective
from router.core.record import Record
from router.routing.replicas import Fleet
from router.triton.control import ControlError
from router.triton.server import TritonServer
from tests.fakes.waiter import FakeWaiter
from tests.router.admission.test_capacity import REPORT
from tests.waiting import soon

SMALL = Need(10, 10)
TEXT = Manifest("tiny", 1, Kind.TEXT, ("engine", "ensemble"), "engine")
VECTORS = Manifest("vectors", 2, Kind.EMBEDDINGS, ("embeddings",))


def config(**fields: Any) -> Any:
    return model_config_pb2.ModelConfig(max_batch_size=8, **fields)


class FakeControl:
    """A Triton that knows one config, or does not tell it."""

    def __init__(self) -> None:
        self.config_now: Any = None
        self.asked = 0

    async def config(self, model: str) -> Any:
        self.asked += 1
        if self.config_now is None:
            raise ControlError("not loaded")
        return self.config_now


class FakeServer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.connection = None
        self.control = FakeControl()


class Seen(FirstCome):
    def __init__(self) -> None:
        super().__init__()
        self.demands: list[Demand] = []

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        self.demands.append(demand)
        return super().offer(demand, progress, now_s)


class Scene:
    def __init__(self, servers: int = 2, slots: int = 0) -> None:
        self.servers = [FakeServer(f"s{number}") for number in range(servers)]
        self.fleet = Fleet([cast("TritonServer", server) for server in self.servers])
        self.policies: list[Seen] = []
        self.objectives: dict[tuple[str, Tier], Objective] = {}
        self.costs: dict[str, BatchCost] = {}
        self.gone: set[tuple[str, str]] = set()
        self.now_s = 100.0
        self.gates = Gates(
            self.fleet,
            self._new_policy,
            lambda model, tier: self.objectives.get((model, tier), Objective(model, tier)),
            slots,
            self.costs.get,
            clock=lambda: self.now_s,
            is_served=lambda model, release: (model, release) not in self.gone,
        )

    def _new_policy(self) -> Seen:
        self.policies.append(Seen())
        return self.policies[-1]

    def offer(self, manifest: Manifest = TEXT, need: Need = SMALL, **fields: Any) -> Demand:
        record = Record(
            "test",
            "req",
            model=manifest.model,
            model_version=str(manifest.version),
            arrived_s=self.now_s,
            **fields,
        )
        self.gates[record.model, record.model_version].offer(record, need)
        return self.policies[-1].demands[-1]


def test_a_release_has_the_slots_of_its_open_replicas() -> None:
    scene = Scene()
    replicas = scene.fleet.set_of(TEXT).replicas
    gate = scene.gates["tiny", "1"]
    assert gate.capacity.slots == UNLIMITED  # nobody has reported yet
    for replica in replicas:
        replica.report = REPORT
    scene.gates.refresh()
    assert (gate.capacity.replicas, gate.capacity.slots) == (2, 16)
    replicas[0].is_draining = True
    scene.gates.refresh()
    assert (gate.capacity.replicas, gate.capacity.slots) == (1, 8)


def test_a_model_and_its_adapters_share_the_slots_of_their_engine() -> None:
    """Each that is busy may have an equal part, and what the others leave."""
    scene = Scene(servers=1)
    adapter = Manifest("tiny:sql", 1, Kind.TEXT, ("ensemble",), "engine", base="tiny@1")
    for manifest in (TEXT, adapter):
        for replica in scene.fleet.set_of(manifest).replicas:
            replica.report = REPORT
    base, own = scene.gates["tiny", "1"], scene.gates["tiny:sql", "1"]
    scene.gates.refresh()
    assert (base.capacity.slots_here, own.capacity.slots_here) == (8, 8)

    def ask(gate: Gate, times: int) -> None:
        for _ in range(times):
            gate.offer(Record("test", "req", model=gate.model, model_version="1"), SMALL)
        scene.gates.refresh()

    ask(base, 3)
    assert (base.capacity.slots_here, own.capacity.slots_here) == (8, 5)
    ask(base, 4)
    assert own.capacity.slots_here == 4, "half of them, although the base has more"
    ask(own, 1)
    assert (base.capacity.slots_here, own.capacity.slots_here) == (7, 4)


def test_without_an_open_replica_no_limit_is_applied() -> None:
    scene = Scene(servers=1, slots=1)
    (replica,) = scene.fleet.set_of(TEXT).replicas
    replica.report = REPORT
    gate = scene.gates["tiny", "1"]
    assert gate.capacity.slots == 1
    replica.mark_down("died", 0.0, reviving=False)
    scene.gates.refresh()
    assert gate.capacity == UNKNOWN


def test_a_returning_replica_does_not_get_the_whole_queue_at_once() -> None:
    scene = Scene(servers=1)
    (replica,) = scene.fleet.set_of(TEXT).replicas
    replica.report = REPORT
    gate = scene.gates["tiny", "1"]
    known = gate.capacity
    replica.mark_down("died", 0.0, reviving=True)
    scene.gates.refresh()
    assert gate.capacity == known
    replica.report, replica.reported_s = None, -inf
    replica.mark_up(1.0)
    scene.gates.refresh()
    assert gate.capacity == known, "its engine has not said yet how it is"
    replica.reported_s = 2.0
    scene.gates.refresh()
    assert gate.capacity.slots == UNLIMITED, "it never says"


def test_a_returning_replica_without_a_report_counts_like_the_other_replicas() -> None:
    scene = Scene()
    first, second = scene.fleet.set_of(TEXT).replicas
    gate = scene.gates["tiny", "1"]
    first.report, first.reported_s = REPORT, 1.0
    scene.gates.refresh()
    assert (gate.capacity.replicas, gate.capacity.slots) == (2, 16), "the second is asked in a moment"
    second.mark_down("died", 0.0, reviving=True)
    scene.gates.refresh()
    assert (gate.capacity.replicas, gate.capacity.slots) == (1, 8)


async def test_a_models_batch_shape_is_read_again_when_its_release_changes() -> None:
    scene = Scene(servers=1)
    scene.fleet.set_of(VECTORS)
    scene.servers[0].control.config_now = config()
    scene.offer(VECTORS, Need(0, sequences=3))
    await scene.gates.learn_shapes()
    scene.fleet.forget("vectors@2")
    scene.gates.refresh()
    scene.fleet.set_of(VECTORS)
    await scene.gates.learn_shapes()
    assert scene.servers[0].control.asked == 2


def test_an_operators_number_of_slots_stands_for_the_engines() -> None:
    for slots, expected in ((5, 5), (-1, UNLIMITED), (0, 8)):
        scene = Scene(servers=1, slots=slots)
        scene.fleet.set_of(TEXT).replicas[0].report = REPORT
        assert scene.gates["tiny", "1"].capacity.slots == expected


async def test_triton_is_asked_how_a_batch_model_takes_rows() -> None:
    scene = Scene()
    scene.fleet.set_of(VECTORS)
    gate = scene.gates["vectors", "2"]
    await scene.gates.learn_shapes()
    scene.gates.refresh()
    assert gate.capacity.slots == UNLIMITED  # it did not say
    scene.servers[0].control.config_now = config()
    await scene.gates.learn_shapes()
    assert scene.servers[0].control.asked == 1  # not again so soon
    scene.now_s += 5.0
    scene.costs["vectors@2"] = BatchCost(1.0, 0.5)
    await scene.gates.learn_shapes()
    scene.gates.refresh()
    assert gate.capacity == Capacity(2, 32, batch=BatchCost(1.0, 0.5))


def test_a_models_batch_shape_is_read_from_its_config() -> None:
    group = model_config_pb2.ModelInstanceGroup
    policy = model_config_pb2.ModelTransactionPolicy
    assert batch_shape(config(instance_group=[group(count=2), group()])) == BatchShape(8, 3)
    assert batch_shape(config(instance_group=[group(count=2, gpus=[0, 1])])) == BatchShape(8, 4)
    assert batch_shape(config(platform="ensemble")) == BatchShape(8, 0)
    decoupled = config(model_transaction_policy=policy(decoupled=True))
    assert batch_shape(decoupled) == BatchShape(8, 1, is_decoupled=True)


def test_the_deadline_is_the_objective_the_patience_or_the_clients_own() -> None:
    scene = Scene()
    scene.fleet.set_of(TEXT), scene.fleet.set_of(VECTORS)
    assert scene.offer().deadline_s == 160.0
    assert scene.offer(tier=Tier.BATCH).deadline_s == 700.0
    assert scene.offer(deadline_s=103.0).deadline_s == 103.0
    objective = Objective("tiny", Tier.INTERACTIVE, first_token_s=0.5, end_to_end_s=9.0)
    scene.objectives["tiny", Tier.INTERACTIVE] = objective
    assert scene.offer(tier=Tier.INTERACTIVE, deadline_s=103.0).deadline_s == 100.5
    scene.objectives["vectors", Tier.STANDARD] = replace(objective, end_to_end_s=0.1)
    assert scene.offer(VECTORS).deadline_s == 100.1


def test_rows_and_the_tokens_of_their_texts_count_of_a_batch_model() -> None:
    scene = Scene()
    scene.fleet.set_of(VECTORS)
    demand = scene.offer(VECTORS, Need(5000, sequences=40))
    assert (demand.prompt_tokens, demand.max_tokens, demand.sequences) == (5000, 0, 40)


async def test_a_removed_release_starts_its_whole_queue_at_once() -> None:
    scene = Scene(servers=1)
    scene.fleet.set_of(TEXT).replicas[0].report = replace(REPORT, max_batch_size=1)
    record = Record("test", "req", model="tiny", model_version="1")
    turns = [scene.gates["tiny", "1"].offer(record, SMALL) for _ in range(3)]
    waiting = [asyncio.create_task(turn.come(FakeWaiter())) for turn in turns]
    await asyncio.sleep(0)
    scene.gates.refresh()
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False, False]
    scene.gone.add(("tiny", "1"))
    scene.gates.refresh()
    await soon(asyncio.gather(*waiting))
    scene.gates.close()


async def test_draining_ends_all_queued_requests_at_once() -> None:
    scene = Scene()
    gate = scene.gates["tiny", "1"]
    gate.resize(Capacity(1, 1))
    turns = []
    for _ in range(3):
        record = Record("test", "req", model="tiny", model_version="1")
        turn = gate.offer(record, Need(1, 1))
        turns.append(asyncio.get_running_loop().create_task(turn.come(FakeWaiter())))
    await asyncio.sleep(0)
    assert [task.done() for task in turns] == [True, False, False]
    scene.gates.drain()
    for task in turns[1:]:
        with pytest.raises(InflightError, match="shutting down") as error:
            await task
        assert error.value.kind is ErrorKind.OVERLOADED
    scene.gates.close()


async def test_what_is_only_nice_to_have_goes_where_nobody_waits_and_slots_are_free() -> None:
    scene = Scene()
    assert scene.gates.has_room("tiny", "1", "2")
    gate = scene.gates["tiny", "2"]
    gate.resize(Capacity(1, 2))
    record = Record("test", "req", model="tiny", model_version="2")
    turn = gate.offer(record, Need(1, 1))
    assert scene.gates.has_room("tiny", "1", "2")
    gate.offer(record, Need(1, 1))
    assert not scene.gates.has_room("tiny", "1", "2")
    assert scene.gates.has_room("tiny", "1")
    turn.end(finished=True)
    assert scene.gates.has_room("tiny", "1", "2")


def test_free_slots_are_counted_in_rows() -> None:
    scene = Scene()
    scene.fleet.set_of(VECTORS)
    gate = scene.gates["vectors", "2"]
    gate.resize(Capacity(1, 16))
    turn = gate.offer(Record("test", "req", model="vectors", model_version="2"), Need(0, sequences=16))
    assert gate.taken_slots == 16
    assert not scene.gates.has_room("vectors", "2")
    turn.end(finished=True)
    assert (gate.taken_slots, scene.gates.has_room("vectors", "2")) == (0, True)


def test_the_gate_of_a_removed_release_is_dropped_with_its_last_request() -> None:
    scene = Scene()
    scene.fleet.set_of(TEXT)
    record = Record("test", "req", model="tiny", model_version="1")
    turn = scene.gates["tiny", "1"].offer(record, Need(1, 1))
    scene.fleet.forget("tiny@1")
    scene.gates.refresh()
    assert len(scene.gates) == 1
    turn.end(finished=True)
    scene.gates.refresh()
    assert not scene.gates
