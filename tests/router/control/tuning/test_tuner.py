"""Queue delays follow objectives: measured in Triton, decided, loaded, told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.control.objectives.monitor import ObjectiveMonitor
from router.control.releases.records import Release
from router.control.releases.states import State
from router.control.tuning.decisions import TuningDecision, last_decisions, list_decisions, set_paused
from router.control.tuning.delay_change import UNTUNED, Batched
from router.control.tuning.tuner import Tuner, TuningSettings
from router.core.manifest import Kind, Manifest
from router.core.objective import Objective
from router.routing.replicas import Fleet
from router.routing.split import ModelSplit, first_split
from router.store.database import Store, StoreAccess
from router.telemetry.collectors import BatchMetrics
from router.telemetry.metrics import Metrics
from tests.fakes.tuned_triton import GatheringModel, GatheringServer
from tests.router.control.releases.values import built_in

VECTORS = Manifest("vectors", 1, Kind.EMBEDDINGS, ("vectors.1",))


@dataclass
class Book:
    releases: list[Release]
    splits: dict[str, ModelSplit] = field(default_factory=dict)


@dataclass
class Wishes:
    end_to_end_s: float | None = 0.1
    first_token_s: float | None = 0.5

    def of(self, model: str, tier: Tier) -> Objective:
        if tier is not Tier.STANDARD:
            return Objective(model, tier)
        if model == VECTORS.model:
            return Objective(model, tier, end_to_end_s=self.end_to_end_s)
        return Objective(model, tier, first_token_s=self.first_token_s)


class World:
    """A tuner whose windows of 2 s pass when told, with all requests that come to one server meanwhile."""

    def __init__(self, store: Store, servers: list[GatheringServer], manifest: Manifest = VECTORS) -> None:
        self.now_s = 1000.0
        self.store = store
        self.access = StoreAccess(store, 1)
        self.servers = servers
        self.manifest = manifest
        self.wishes = Wishes()
        self.monitor = ObjectiveMonitor(lambda: self.now_s)
        self.book = Book([release(manifest)])
        self.is_in_control = True
        self.misfit: str | None = None
        self.meanwhile: Callable[[], None] = lambda: None  # what happens while a change is prepared
        fleet = Fleet(servers, lambda: self.now_s)
        self.replicas = fleet.set_of(manifest).replicas
        for replica in self.replicas:
            replica.is_loaded = True
        self.tuner = Tuner(
            fleet,
            self.book,
            self.wishes.of,
            self.monitor,
            self.access,
            lambda: self.is_in_control,
            TuningSettings(window_s=2.0),
            misfit=self._misfit,
            clock=lambda: self.now_s,
        )

    def _misfit(self, manifest: Manifest, member: str, batched: Batched, url: str) -> str | None:
        self.meanwhile()
        return self.misfit

    async def pass_by(self, windows: int, per_s: float, took_s: float = 0.02) -> None:
        """Each is looked at twice."""
        for _ in range(2 * windows):
            for server in self.servers:
                for model in server.models.values():
                    model.serve(round(per_s), per_s)
            for _ in range(round(per_s)):
                self.monitor.end_to_end(self.manifest.model, Tier.STANDARD, took_s)
            self.now_s += 1.0
            await self.tuner.turn()

    def delays_ms(self, member: str = VECTORS.entry) -> list[float]:
        return [server.models[member].delay_us / 1000 for server in self.servers]

    def metrics(self) -> str:
        metrics = Metrics()
        metrics.expose(BatchMetrics(self.tuner))
        return metrics.render().decode()

    def changes(self) -> list[tuple[str, str]]:
        """The oldest first."""
        with self.store.read() as connection:
            found = list_decisions(connection)
        return [(each.action, each.sentence) for each in reversed(found)]

    def standing(self) -> TuningDecision:
        with self.store.read() as connection:
            return last_decisions(connection)[-1]


def release(manifest: Manifest, state: State = State.READY) -> Release:
    return Release(manifest, "", 0.0, "", True, state, "", 0.0, None)


def vectors(number: int = 0, **given: object) -> GatheringServer:
    return GatheringServer(f"triton-{number}", {VECTORS.entry: GatheringModel(**given)})  # type: ignore[arg-type]  # fields by name


@pytest.fixture
def store(lite: Store) -> Store:
    return lite


async def test_prometheus_shows_the_time_in_tritons_queue_and_in_compute(store: Store) -> None:
    world = World(store, [vectors(), vectors(1)])
    await world.pass_by(1, 200)
    served = world.servers[0].models[VECTORS.entry].statistics.inference_stats
    before = (served.success.count, served.queue.ns, served.compute_infer.ns)
    await world.pass_by(10, 200)
    found = dict(re.findall(r"^inflight_triton_(\w+)_total\{.*\} (\S+)$", world.metrics(), re.MULTILINE))
    assert found.keys() == {"requests", "rows", "executions", "queue_seconds", "compute_seconds"}
    mean_queue_s, mean_compute_s = (
        float(found[name]) / float(found["requests"]) for name in ("queue_seconds", "compute_seconds")
    )
    assert 0.01 < mean_queue_s < 0.05, "50 ms in force from the middle on"
    assert mean_compute_s > 0
    assert float(found["rows"]) / float(found["executions"]) > 1
    assert float(found["requests"]) > served.success.count - before[0], "of both servers, over all loads"


async def test_the_delay_rises_under_load_and_falls_at_once_after_it(store: Store) -> None:
    world = World(store, [vectors()])
    await world.pass_by(3, 200)
    assert world.delays_ms() == [0]
    await world.pass_by(2, 200)
    assert world.delays_ms() == [50]
    batching = world.servers[0].models[VECTORS.entry].config.dynamic_batching
    assert max(batching.preferred_batch_size) == 64
    assert batching.default_queue_policy.max_queue_size >= 256
    await world.pass_by(4, 200)
    assert world.delays_ms() == [50]
    assert world.standing().action == "hold"
    assert world.standing().detail["mean_batch"] == 11
    labels = 'model="vectors",release="1",triton_model="vectors.1"'
    assert f"inflight_queue_delay_seconds{{{labels}}} 0.05" in world.metrics()
    assert f"inflight_triton_requests_total{{{labels}}}" in world.metrics()
    await world.pass_by(2, 1)
    assert world.delays_ms() == [0]
    assert [action for action, _ in world.changes()] == ["raise", "lower"]
    assert "queue delay 0 -> 50 ms: 200 requests/s" in world.changes()[0][1]
    config = world.servers[0].models[VECTORS.entry].config
    assert UNTUNED not in config.parameters  # all as it was
    assert list(config.dynamic_batching.preferred_batch_size) == [64]


async def test_a_delay_that_brought_nothing_is_undone_and_not_retried(store: Store) -> None:
    world = World(store, [vectors(joins=False)])
    await world.pass_by(30, 200)
    assert world.delays_ms() == [0]
    assert [action for action, _ in world.changes()] == ["raise", "undo"]
    assert "hardly any request joins" in world.changes()[1][1]
    assert "50 ms failed" in world.standing().sentence


async def test_a_missed_objective_halves_the_delay(store: Store) -> None:
    world = World(store, [vectors()])
    await world.pass_by(8, 200)
    await world.pass_by(2, 200, took_s=0.15)
    assert world.delays_ms() == [20]
    assert world.changes()[-1][0] == "halve"


async def test_no_delay_is_changed_without_an_objective_without_control_or_while_paused(store: Store) -> None:
    world = World(store, [vectors()])
    world.wishes.end_to_end_s = None
    await world.pass_by(6, 200)
    world.wishes.end_to_end_s = 0.1
    world.is_in_control = False
    await world.pass_by(6, 200)
    world.is_in_control = True
    with store.begin() as connection:
        set_paused(store, connection, "vectors", 1.0, True)
    await world.pass_by(6, 200)
    assert world.servers[0].models[VECTORS.entry].loads == 0
    assert "paused" in world.standing().sentence
    learned = world.tuner.learned(VECTORS.name)
    assert learned is not None  # for admission needs it
    assert learned.cost.batch_ms(1) == pytest.approx(4.5, rel=0.1)


async def test_removing_the_objective_restores_the_models_own_config(store: Store) -> None:
    world = World(store, [vectors(own_delay_us=500)])
    await world.pass_by(6, 200)
    assert world.delays_ms() == [50]
    world.wishes.end_to_end_s = None
    await world.pass_by(2, 200)
    assert world.delays_ms() == [0.5]
    assert world.changes()[-1][0] == "restore"
    loads = world.servers[0].models[VECTORS.entry].loads
    await world.pass_by(3, 200)
    assert world.servers[0].models[VECTORS.entry].loads == loads


async def test_the_epoch_of_a_model_is_kept_when_its_delay_changes(store: Store) -> None:
    world = World(store, [vectors()])
    config = world.servers[0].models[VECTORS.entry].config
    config.parameters["inflight_epoch"].string_value = "77"
    await world.pass_by(6, 200)
    config = world.servers[0].models[VECTORS.entry].config
    assert world.delays_ms() == [50]
    assert config.parameters["inflight_epoch"].string_value == "77"


async def test_a_change_that_triton_refuses_is_reported_once_and_the_old_delay_stays(store: Store) -> None:
    world = World(store, [vectors(load_error="failed to load: no memory in /models/x")])
    await world.pass_by(20, 200)
    assert world.servers[0].models[VECTORS.entry].loads == 1
    ((action, sentence),) = world.changes()
    assert action == "fail"
    assert "/models/x" not in sentence
    assert world.delays_ms() == [0]


async def test_a_load_that_changed_nothing_counts_as_refused(store: Store) -> None:
    world = World(store, [vectors(is_deaf=True)])
    await world.pass_by(20, 200)
    assert world.servers[0].models[VECTORS.entry].loads == 1
    assert "not with the new queue delay" in world.changes()[0][1]


async def test_a_change_is_not_loaded_where_a_second_copy_does_not_fit(store: Store) -> None:
    world = World(store, [vectors()])
    world.misfit = "a second copy needs 9 MiB; 5 MiB are free"
    await world.pass_by(12, 200)
    assert world.servers[0].models[VECTORS.entry].loads == 0
    assert world.changes() == []
    world.misfit = None
    await world.pass_by(4, 200)
    assert world.delays_ms() == [50]


async def test_all_servers_get_the_delay_and_a_restarted_one_gets_it_again(store: Store) -> None:
    world = World(store, [vectors(0), vectors(1)])
    await world.pass_by(6, 200)
    assert world.delays_ms() == [50, 50]
    world.servers[1].control.models = world.servers[1].models = {VECTORS.entry: GatheringModel()}
    await world.pass_by(2, 200)
    assert world.delays_ms() == [50, 50]
    assert world.changes()[-1][0] == "align"


async def test_a_server_that_is_down_is_left_out(store: Store) -> None:
    world = World(store, [vectors(0), vectors(1)])
    world.replicas[1].is_loaded = False
    world.servers[1].control.is_away = True
    await world.pass_by(6, 200)
    assert world.delays_ms() == [50, 0]


async def test_no_change_is_tried_while_a_release_is_loaded_or_rolled_out(store: Store) -> None:
    world = World(store, [vectors()])
    other = Manifest("other", 1, Kind.TENSORS, ("other.1",))
    world.book.releases.append(release(other, State.LOADING))
    await world.pass_by(6, 200)
    assert world.changes() == []
    world.book.releases.pop()
    world.book.splits["vectors"] = replace(first_split("vectors", 1), rollout_id=3)
    await world.pass_by(6, 200)
    assert world.changes() == []
    assert "a rollout is in progress" in world.standing().sentence


@pytest.mark.parametrize("state", [State.DRAINING, State.UNLOADED])
async def test_a_release_that_goes_while_its_change_is_prepared_is_not_loaded(
    store: Store, state: State
) -> None:
    world = World(store, [vectors()])
    world.meanwhile = lambda: world.book.releases.__setitem__(0, release(VECTORS, state))
    await world.pass_by(6, 200)
    assert world.servers[0].models[VECTORS.entry].loads == 0
    assert "being loaded or unloaded" in world.standing().sentence


async def test_a_server_that_dies_while_a_change_is_prepared_is_left_out(store: Store) -> None:
    world = World(store, [vectors(0), vectors(1)])
    await world.pass_by(3, 200)
    world.meanwhile = lambda: world.replicas[1].mark_down("died", world.now_s, reviving=True)
    await world.pass_by(2, 200)
    assert world.delays_ms() == [50, 0]


async def test_an_unreachable_store_is_logged_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    world = World(store, [vectors()])
    turns, thrice = 0, asyncio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            thrice.set()
        raise InflightError(ErrorKind.OVERLOADED, "the store is away")

    world.tuner._settings = TuningSettings(window_s=0.002)
    world.tuner.turn = turn  # type: ignore[method-assign]  # a turn that always fails
    running = asyncio.create_task(world.tuner.run())
    await thrice.wait()
    running.cancel()
    assert caplog.text.count("the store is away") == 1


async def test_only_the_steps_before_the_engine_are_tuned_in_a_text_model(store: Store) -> None:
    models = {
        "preprocessing": GatheringModel(),
        "tensorrt_llm": GatheringModel(is_decoupled=True),
        "postprocessing": GatheringModel(gathers=False),
        "ensemble": GatheringModel(gathers=False),
    }
    text = built_in()
    world = World(store, [GatheringServer("triton-0", models)], text)
    await world.pass_by(6, 200)
    assert world.delays_ms("preprocessing") == [20]  # within a tenth of half a second
    assert [models[name].loads for name in text.members[1:]] == [0, 0, 0]
    assert world.standing().detail["allowed_ms"] == 50
    assert world.tuner.batch_cost(text.name) is None


async def test_one_change_is_judged_at_a_time(store: Store) -> None:
    members = ("first", "second")
    both = Manifest("vectors", 1, Kind.TENSORS, members)
    models = {name: GatheringModel() for name in members}
    world = World(store, [GatheringServer("triton-0", models)], both)
    world.wishes.end_to_end_s = 1.0
    seen = []
    for _ in range(16):
        await world.pass_by(1, 200)
        seen.append(sum(model.loads for model in models.values()))
    assert set(seen) == {0, 1, 2}
