from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from router.control.releases import records
from router.control.releases.adoption import adopt
from router.control.releases.controller import Controller, ControlSettings
from router.control.releases.lease import LeaseTimes
from router.control.releases.memory_fit import FreeMemory
from router.control.releases.ports import Rollouts, Server
from router.control.releases.states import State
from router.control.releases.steps import Tools
from router.control.releases.warm_up import WarmingFailed
from router.control.releases.writes import last_seen
from router.core.manifest import Kind, Manifest
from router.store.database import Store, StoreAccess
from tests.fakes.controlled_fleet import FakeFleet, FakeReplica, FakeReplicaSet, FakeServer
from tests.pace import patience
from tests.router.control.releases.values import MODEL, built_in, find, manifest, office, written
from tests.waiting import until

SETTINGS = ControlSettings(0.01, 1.0, 2.0, 120.0, LeaseTimes(10.0, 3.0, 2.0))


@dataclass
class World:
    """One router in control of its fleet, whose time passes only when a test says so."""

    store: Store
    access: StoreAccess
    releases_dir: Path
    fleet: FakeFleet
    now_s: float = 1000.0
    free: FreeMemory = field(default_factory=lambda: FreeMemory(1 << 40))
    warmed: list[tuple[str, str]] = field(default_factory=list)
    mute: dict[str, str] = field(default_factory=dict)  # servers whose answers are none, and why

    def controller(self, rollouts: Rollouts | None = None) -> Controller:
        tools = Tools(
            self.releases_dir,
            self.warm,
            lambda: self.free,
            lambda: self.now_s,
            lambda: self.now_s,
        )
        return Controller(self.access, self.fleet, tools, rollouts, SETTINGS)

    async def warm(self, server: Server, of: Manifest) -> dict[str, float]:
        self.warmed.append((server.name, of.name))
        if server.name in self.mute:
            raise WarmingFailed(self.mute[server.name])
        return {"first_token_s": 0.1, "tokens_per_s": 50.0 + len(self.warmed)}

    def add(self, version: int, *, model: str = MODEL, needs_bytes: int = 0, gpus: int = 0) -> Manifest:
        made = manifest(version, model, needs_bytes=needs_bytes)
        made = written(self.releases_dir, replace(made, needs=replace(made.needs, gpus=gpus)))
        office(self.store).add(made)
        self.fleet.knows(made)
        return made

    def adopt(self, of: Manifest) -> Manifest:
        adopted = adopt(self.store, of)
        self.fleet.knows(adopted)
        for server in self.fleet.servers:
            server.control.loaded |= set(of.members)
        return adopted

    def state(self, version: int, model: str = MODEL) -> State:
        return find(self.store, version, model).state

    @property
    def one(self) -> FakeServer:
        return self.fleet.servers[0]


async def settle(*controllers: Controller, turns: int = 8) -> None:
    """Turn after turn, with the jobs that each begins."""
    for _ in range(turns):
        for each in controllers:
            await each.beat()
            each._look_again_s = 0.0
            await each.turn()
            if jobs := list(each._jobs.values()):
                await asyncio.wait(jobs, timeout=patience(30))
            await asyncio.sleep(0)


@pytest.fixture
async def world(lite: Store, tmp_path: Path) -> AsyncIterator[World]:
    access = StoreAccess(lite)
    yield World(lite, access, tmp_path / "releases", FakeFleet([FakeServer("one")]))
    access.close()


@asynccontextmanager
async def controlling(world: World, rollouts: Rollouts | None = None) -> AsyncIterator[Controller]:
    made = world.controller(rollouts)
    try:
        yield made
    finally:
        await made.stop()


async def test_a_wanted_release_is_loaded_warmed_and_ready(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    found = find(world.store, 1)
    assert found.state is State.READY
    assert found.profile is not None
    assert found.profile["first_token_s"] == 0.1
    assert world.one.control.told == ["load smol.1"], "its members come with it"
    assert world.warmed == [("one", "smol@1")]
    with world.store.read() as connection:
        told = [each.what for each in reversed(records.list_events(connection))]
    assert told == ["add", "load", "loading", "warming", "ready"]


async def test_a_release_that_was_ready_before_a_restart_is_seen_again_only_when_it_is_loaded(
    world: World,
) -> None:
    """The store says ready from before, and another release is loaded first."""
    acts, control = office(world.store), world.one.control
    for version in (1, 2):
        world.add(version)
        acts.load(MODEL, version)
    async with controlling(world) as controller:
        await settle(controller)
    control.die()
    control.is_up = True
    control.may_load.clear()
    asked = acts.load(MODEL, 2)
    async with controlling(world) as controller:
        await controller.beat()
        await controller.turn()
        await until(lambda: world.state(2) is State.LOADING)
        assert seen(world, 2) < asked
        control.may_load.set()
        await settle(controller)
    assert world.state(2) is State.READY
    assert seen(world, 2) >= asked


async def test_a_ready_release_is_not_seen_while_no_server_answers(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
        world.one.control.is_up = False
        asked = office(world.store).load(MODEL, 1)
        await settle(controller)
        assert seen(world, 1) < asked
        world.one.control.is_up = True
        await settle(controller)
        assert seen(world, 1) >= asked


def seen(world: World, version: int) -> int:
    with world.store.read() as connection:
        return last_seen(connection, f"{MODEL}@{version}")


async def test_an_unwanted_release_is_left_alone(world: World) -> None:
    world.add(1)
    async with controlling(world) as controller:
        await settle(controller)
    assert (world.state(1), world.one.control.told) == (State.ADDED, [])


async def test_a_stale_reading_from_before_a_load_ended_is_not_acted_upon(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    control = world.one.control
    async with controlling(world) as controller:
        await controller.beat()
        control.may_load.clear()
        await controller.turn()
        await until(lambda: bool(control.told))
        control.may_tell.clear()
        controller._look_again_s = 0.0
        slow = asyncio.create_task(controller.turn())
        await until(lambda: control.is_telling)
        control.may_load.set()
        await asyncio.wait(list(controller._jobs.values()), timeout=patience(30))
        await asyncio.sleep(0)
        assert world.state(1) is State.READY
        control.may_tell.set()
        await slow
        await settle(controller)
    assert control.told == ["load smol.1"]


async def test_the_release_with_most_traffic_is_loaded_first(world: World) -> None:
    for version in (1, 2, 3):
        world.add(version)
    office(world.store).promote(MODEL, 3)
    for version in (1, 2):
        office(world.store).load(MODEL, version)
    async with controlling(world) as controller:
        await settle(controller)
    assert world.one.control.told[0] == "load smol.3"


async def test_a_release_is_drained_before_it_is_unloaded(world: World) -> None:
    made = world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
        office(world.store).unload(MODEL, 1)
        busy = FakeReplica(open_count=1)
        world.fleet.sets[made.name] = FakeReplicaSet([busy])
        await settle(controller)
        assert world.state(1) is State.DRAINING
        world.now_s += 5.0
        await settle(controller)
        assert world.state(1) is State.DRAINING, "somebody is still being answered"
        busy.open_count = 0
        await settle(controller)
    assert world.state(1) is State.UNLOADED
    assert world.one.control.told[1:] == ["unload smol.1", "unload smol.1.tensorrt_llm"]


async def test_a_release_that_never_drains_is_unloaded_in_the_end(world: World) -> None:
    made = world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
        office(world.store).unload(MODEL, 1)
        world.fleet.sets[made.name] = FakeReplicaSet([FakeReplica(open_count=1)])
        await settle(controller)
        for _ in range(13):
            world.now_s += 10.0
            await settle(controller, turns=2)
    assert world.state(1) is State.UNLOADED


async def test_a_draining_release_that_is_wanted_again_is_ready_at_once(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
        office(world.store).unload(MODEL, 1)
        await settle(controller)
        assert world.state(1) is State.DRAINING
        office(world.store).load(MODEL, 1)
        await settle(controller)
    assert world.state(1) is State.READY
    assert world.one.control.told == ["load smol.1"]


async def test_a_failed_load_is_reported_without_paths_and_not_retried(world: World) -> None:
    world.add(1)
    world.add(2)
    for version in (1, 2):
        office(world.store).load(MODEL, version)
    world.one.control.broken["smol.2"] = "failed to load /srv/releases/repository/smol.2/config.pbtxt"
    async with controlling(world) as controller:
        await settle(controller, turns=20)
        failed = find(world.store, 2)
        assert (failed.state, failed.reason) == (State.FAILED, "failed to load config.pbtxt")
        assert world.one.control.told.count("load smol.2") == 1
        assert world.one.control.loaded == {"smol.1", "smol.1.tensorrt_llm"}, "nothing half loaded is left"
        assert world.state(1) is State.READY
        world.one.control.broken.clear()
        office(world.store).load(MODEL, 2)
        await settle(controller)
    assert world.state(2) is State.READY


async def test_a_tampered_release_never_reaches_triton(world: World) -> None:
    world.add(1)
    (world.releases_dir / "repository" / "smol.1" / "model.py").write_text("import os")
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    failed = find(world.store, 1)
    assert (failed.state, failed.reason) == (State.FAILED, "smol.1/model.py did not exist when it was added")
    assert world.one.control.told == []


async def test_a_release_changed_while_triton_loads_it_is_unloaded_again(world: World) -> None:
    world.add(1)
    config = world.releases_dir / "repository" / "smol.1" / "config.pbtxt"
    load = world.one.control.load

    async def load_what_was_changed(model: str) -> None:
        config.write_text("changed")
        await load(model)

    world.one.control.load = load_what_was_changed  # type: ignore[method-assign]  # one that is overtaken
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    assert world.state(1) is State.FAILED
    assert find(world.store, 1).reason.startswith("smol.1/config.pbtxt has 7 bytes")
    assert "unload smol.1" in world.one.control.told


async def test_a_release_that_cannot_fit_is_refused_with_the_memory_it_needs(world: World) -> None:
    world.add(1, needs_bytes=12 << 30)
    world.free = FreeMemory(4 << 30)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    assert find(world.store, 1).reason == (
        "it needs 12.0 GiB of memory; 4.0 GiB are free: unload another release first"
    )


async def test_a_release_for_gpus_is_measured_against_their_memory(world: World) -> None:
    world.add(1, needs_bytes=12 << 30, gpus=2)
    world.free = FreeMemory(1 << 30, (5 << 30, 80 << 30))
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
        assert find(world.store, 1).reason == (
            "it needs 6.0 GiB of each of 2 GPUs; free on the GPUs of this machine: 5.0, 80.0 GiB. "
            "Unload another release first"
        )
        world.free = FreeMemory(1 << 30, (6 << 30, 80 << 30))
        office(world.store).load(MODEL, 1)
        await settle(controller)
    assert world.state(1) is State.READY


async def test_memory_of_other_machines_is_not_checked(world: World) -> None:
    world.add(1, needs_bytes=12 << 30)
    world.free = FreeMemory(4 << 30)
    world.fleet.servers[0].url = "10.0.0.7:8001"
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    assert world.state(1) is State.READY


async def test_a_release_that_fails_its_warm_up_has_failed(world: World) -> None:
    world.add(1)
    world.mute["one"] = "all 3 canonical prompts got an empty answer"
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    failed = find(world.store, 1)
    assert (failed.state, failed.reason) == (State.FAILED, world.mute["one"])
    assert world.one.control.loaded == set()


async def test_a_restarted_triton_gets_its_releases_back(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
        profile = find(world.store, 1).profile
        world.one.control.die()
        await settle(controller)
        assert world.state(1) is State.READY, "what nobody can see is not judged"
        world.one.control.is_up = True
        await settle(controller)
    assert world.state(1) is State.READY
    assert world.one.control.told == ["load smol.1"] * 2
    assert find(world.store, 1).profile == profile, "measured once"


async def test_a_failed_release_is_retried_a_few_times_after_triton_restarts(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    world.one.control.broken["smol.1"] = "no memory"
    async with controlling(world) as controller:
        await settle(controller)
        assert world.state(1) is State.FAILED
        for _ in range(6):
            world.one.control.die()
            await settle(controller, turns=2)
            world.one.control.is_up = True
            await settle(controller, turns=3)
    assert world.one.control.told.count("load smol.1") == 4, "and not for ever"


async def test_a_release_that_crashes_triton_is_not_loaded_for_ever(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    world.one.control.deadly.add("smol.1")
    async with controlling(world) as controller:
        for _ in range(8):
            world.one.control.is_up = True
            await settle(controller, turns=3)
            world.now_s += 2.0
    assert world.one.control.told.count("load smol.1") <= 6
    failed = find(world.store, 1)
    assert failed.state is State.FAILED
    assert failed.reason.startswith("Triton became unreachable while loading it")


async def test_a_built_in_release_is_ready_when_triton_has_it(world: World) -> None:
    world.adopt(built_in())
    async with controlling(world) as controller:
        await settle(controller)
        assert world.state(1) is State.READY
        assert world.one.control.told == []
        # It can be unloaded, and loaded again.
        world.add(2)
        office(world.store).load(MODEL, 2)
        await settle(controller)
        office(world.store).promote(MODEL, 2)
        office(world.store).unload(MODEL, 1)
        await settle(controller)
        world.now_s += 3.0
        await settle(controller)
        assert world.state(1) is State.UNLOADED
        assert world.one.control.loaded == {"smol.2", "smol.2.tensorrt_llm"}
        office(world.store).load(MODEL, 1)
        await settle(controller)
    assert world.state(1) is State.READY
    assert world.one.control.told[-1] == "load ensemble"


def add_adapter(world: World, base: Manifest) -> Manifest:
    made = Manifest("smol:sql", 1, Kind.TEXT, (base.entry,), base.engine, base=base.name)
    described = world.releases_dir / "manifests" / f"{made.name}.json"
    described.parent.mkdir(parents=True, exist_ok=True)
    described.write_text(made.to_json())
    office(world.store).add(made)
    office(world.store).load(made.model, 1)
    return made


async def test_an_adapter_is_ready_when_it_answers_and_triton_is_told_nothing(world: World) -> None:
    made = add_adapter(world, world.adopt(built_in()))
    async with controlling(world) as controller:
        await settle(controller)
        assert world.state(1, made.model) is State.READY
        assert world.warmed == [("one", "smol:sql@1")]
        with pytest.raises(ValueError, match="smol:sql@1 is an adapter of smol@1 and is ready"):
            office(world.store).unload(MODEL, 1, withdraw=True)
        office(world.store).unload(made.model, 1)
        await settle(controller)
        world.now_s += 3.0
        await settle(controller)
    assert world.state(1, made.model) is State.UNLOADED
    assert world.state(1) is State.READY
    assert world.one.control.told == []
    (dropped,) = world.one.connection.asked
    assert dropped.model_name == "tensorrt_llm"
    assert dropped.parameters["inflight_drop_adapter"].string_param == "smol.LORA.sql.1"


async def test_an_adapter_follows_what_is_built_in_as_long_as_the_weights_are_the_same(world: World) -> None:
    made = add_adapter(world, world.adopt(built_in()))
    world.adopt(replace(built_in(), parameters={"inflight_precision": "int4"}))
    assert (world.state(1), world.state(2)) == (State.GONE, State.ADDED)
    async with controlling(world) as controller:
        await settle(controller)
        assert world.state(1, made.model) is State.READY
    world.adopt(built_in("other weights"))
    async with controlling(world) as controller:
        world.now_s += 60.0
        await settle(controller)
    found = find(world.store, 1, made.model)
    assert found.state is State.FAILED
    assert "an adapter of smol@1, which is not loaded" in found.reason


async def test_models_of_a_gone_release_are_left_alone(world: World) -> None:
    world.adopt(built_in("a"))
    async with controlling(world) as controller:
        await settle(controller)
        world.adopt(built_in("b"))
        await settle(controller)
    assert (world.state(1), world.state(2)) == (State.GONE, State.READY)
    assert world.one.control.told == []


async def test_without_the_secret_only_built_in_releases_are_served(world: World) -> None:
    world.fleet.servers[0] = FakeServer("one", has_secret=False)
    world.adopt(built_in())
    world.add(2)
    office(world.store).load(MODEL, 2)
    async with controlling(world) as controller:
        await settle(controller)
    assert world.state(1) is State.READY
    assert find(world.store, 2).reason.startswith("this router has neither a secret")
    assert world.one.control.told == []


# Several servers


@pytest.fixture
def two(world: World) -> World:
    world.fleet.servers.append(FakeServer("two"))
    return world


async def test_a_release_is_on_every_server_before_it_is_ready(two: World) -> None:
    two.add(1)
    office(two.store).load(MODEL, 1)
    async with controlling(two) as controller:
        await settle(controller)
    assert [server.control.told for server in two.fleet.servers] == [["load smol.1"]] * 2
    assert two.warmed == [("one", "smol@1"), ("two", "smol@1")]


async def test_a_server_that_joins_later_gets_the_loaded_releases(two: World) -> None:
    two.add(1)
    two.fleet.servers[1].control.is_up = False
    office(two.store).load(MODEL, 1)
    async with controlling(two) as controller:
        await settle(controller)
        assert two.state(1) is State.READY
        two.fleet.servers[1].control.is_up = True
        await settle(controller)
    assert two.fleet.servers[1].control.told == ["load smol.1"]
    assert two.state(1) is State.READY
    with two.store.read() as connection:
        told = [each.what for each in records.list_events(connection)]
    assert told.count("loading") == 1, "it was ready all the time"


@pytest.mark.parametrize("is_mute", [False, True])
async def test_where_one_server_cannot_load_a_release_the_others_serve_it(two: World, is_mute: bool) -> None:
    two.add(1)
    if is_mute:
        two.mute["two"] = "empty"
    else:
        two.fleet.servers[1].control.broken["smol.1"] = "no memory"
    office(two.store).load(MODEL, 1)
    async with controlling(two) as controller:
        await settle(controller, turns=12)
    assert two.state(1) is State.READY
    second = two.fleet.servers[1].control
    assert second.told.count("load smol.1") == 1
    assert second.loaded == set(), "what was loaded for it is gone too"


# Several routers


async def test_two_routers_never_control_releases_at_once(lite: Store, tmp_path: Path) -> None:
    accesses = StoreAccess(lite), StoreAccess(lite)
    fleet = FakeFleet([FakeServer("one")])
    worlds = [
        World(lite, access, tmp_path / "releases", fleet, 1000.0 * n) for n, access in enumerate(accesses)
    ]
    first, second = (world.controller() for world in worlds)
    worlds[0].add(1)
    office(lite).load(MODEL, 1)
    fleet.servers[0].control.may_load.clear()
    await first.beat()
    await first.turn()
    await until(lambda: any(each.startswith("load ") for each in fleet.servers[0].control.told))
    loading = asyncio.wait(list(first._jobs.values()), timeout=patience(30))
    # The second waits for as long as the first renews its lease, and takes over when it has lapsed.
    for _ in range(6):
        worlds[0].now_s, worlds[1].now_s = worlds[0].now_s + 3.0, worlds[1].now_s + 3.0
        await first.beat()
        await second.beat()
        assert (first.in_control, second.in_control) == (True, False)
    worlds[1].now_s += 10.0
    await second.beat()
    assert second.in_control
    worlds[0].now_s += 10.0
    assert not first.in_control
    await first.beat()  # its job is given up
    await loading
    assert first._jobs == {}
    fleet.servers[0].control.may_load.set()
    await settle(second)
    assert find(lite, 1).state is State.READY
    assert worlds[0].warmed == []
    for controller, access in zip((first, second), accesses, strict=True):
        await controller.stop()
        access.close()


async def test_a_state_written_after_control_was_lost_is_dropped(world: World) -> None:
    world.add(1)
    office(world.store).load(MODEL, 1)
    async with controlling(world) as first, controlling(world) as second:
        world.one.control.may_load.clear()
        await first.beat()
        await first.turn()
        await until(lambda: any(each.startswith("load ") for each in world.one.control.told))
        first._lease.release()
        await second.beat()
        first._lease._held_until_s = world.now_s + 100  # as if its clock had stood still
        world.one.control.may_load.set()
        await asyncio.wait(list(first._jobs.values()), timeout=patience(30))
        assert world.state(1) is State.LOADING
        assert world.warmed == []
        await settle(second)
    assert world.state(1) is State.READY


async def test_a_router_that_stops_leaves_control_to_another(world: World) -> None:
    first, second = world.controller(), world.controller()
    running = asyncio.create_task(first.run())
    await until(lambda: first.in_control)
    await second.beat()
    assert (first.in_control, second.in_control) == (True, False)
    running.cancel()
    await asyncio.wait([running])
    await second.beat()
    assert (first.in_control, second.in_control) == (False, True)
    await second.stop()


# Canaries


class Ticking:
    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.ticks = 0
        self._work = work

    is_idle = False

    async def tick(self, now_s: float) -> None:
        self.ticks += 1
        await self._work()


async def test_only_the_router_in_control_runs_canaries(world: World) -> None:
    held = asyncio.Event()

    async def wait() -> None:
        await held.wait()

    first, second = Ticking(wait), Ticking(wait)
    async with controlling(world, first) as one, controlling(world, second) as other:
        await one.beat()
        await other.beat()
        for _ in range(3):
            await one.turn()
            await other.turn()
        await asyncio.sleep(0)
        assert (first.ticks, second.ticks) == (1, 0), "one at a time"
        held.set()

        async def ticks_again() -> bool:
            await one.turn()
            await asyncio.sleep(0)
            return first.ticks == 2

        await until(ticks_again)


async def test_a_tick_that_fails_does_not_stop_the_controller(world: World) -> None:
    async def fail() -> None:
        raise RuntimeError("no")

    world.add(1)
    office(world.store).load(MODEL, 1)
    ticking = Ticking(fail)
    async with controlling(world, ticking) as controller:
        await settle(controller)
        assert ticking.ticks == 1, "the next one is a little later"
        world.now_s += 1.0
        await settle(controller)
    assert ticking.ticks > 1
    assert world.state(1) is State.READY


async def test_an_embeddings_release_becomes_ready_like_a_text_release(world: World) -> None:
    made = written(world.releases_dir, manifest(1, "minilm", Kind.EMBEDDINGS))
    office(world.store).add(made)
    world.fleet.knows(made)
    office(world.store).promote("minilm", 1)
    async with controlling(world) as controller:
        await settle(controller)
    assert world.state(1, "minilm") is State.READY
    assert replace(made, files=()) == manifest(1, "minilm", Kind.EMBEDDINGS)


async def test_a_release_shows_on_how_many_servers_it_answers(world: World) -> None:
    """A release whose process died stays ready, for it is revived; who asks should know that it is down."""
    made = world.add(1)
    world.fleet.sets[made.name] = FakeReplicaSet([FakeReplica(), FakeReplica(is_up=False)])
    office(world.store).load(MODEL, 1)
    async with controlling(world) as controller:
        await settle(controller)
    found = find(world.store, 1)
    assert (found.replicas_up, found.replicas, found.condition) == (1, 2, "ready, 1 of 2 up")
