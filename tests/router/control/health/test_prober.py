"""Models that die, freeze or only take their time, and Tritons that go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from math import inf

import pytest

from python_backend.wire.errors import ENGINE_AWAY
from router.control.health.prober import Prober
from router.control.health.vital_signs import ProbeLimits
from router.core.generation import Failure
from router.core.manifest import Kind, Manifest
from router.routing.replicas import Fleet, Replica
from router.triton.server import TritonServer
from tests.fakes.controlled_triton import SECRET, ControlledTriton, FakeModel
from tests.pace import patience
from tests.waiting import until

MEMBERS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")
TEXT = Manifest("m", 1, Kind.TEXT, MEMBERS, engine="tensorrt_llm")
EMBEDDINGS = Manifest("e", 1, Kind.EMBEDDINGS, ("embeddings",))
TENSORS = Manifest("t", 1, Kind.TENSORS, ("t.1",))
QUICK = ProbeLimits(
    period_s=0.05,
    late_s=patience(0.1),
    misses=3,
    punctual_s=patience(5.0),
    short_queue_s=patience(60.0),
    silence_s=patience(60.0),
    one_token_s=0.3,
)


@dataclass(eq=False)
class FakeWork:
    outstanding_tokens: int = 0
    given_up: list[str] = field(default_factory=list)

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)


@dataclass
class Scene:
    """One router's view of one Triton, looked after as fast as a test wants it."""

    triton: ControlledTriton
    secret: str = SECRET
    limits: ProbeLimits = QUICK
    in_control: bool = True

    def __post_init__(self) -> None:
        self.server = TritonServer("a", self.triton.url, self.secret)
        self.fleet = Fleet([self.server])
        self.deaths: list[tuple[str, str]] = []
        self.prober = Prober(self.fleet, self.limits, lambda: self.in_control, on_death=self._died)
        self.running: asyncio.Task[None] | None = None

    def _died(self, replica: Replica, why: str) -> None:
        self.deaths.append((replica.name, why))

    async def watch(self, manifest: Manifest = TEXT) -> Replica:
        (replica,) = self.fleet.set_of(manifest).replicas
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self.prober.run())
        await until(lambda: replica.is_loaded)
        return replica

    async def rounds(self, model: str, count: int = 4) -> None:
        """Until that many more pings of a model have been asked."""
        goal = self.triton.models[model].pings + count
        await until(lambda: self.triton.models[model].pings >= goal)

    async def close(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])
        await self.server.close()


def work_on(replica: Replica) -> FakeWork:
    work = FakeWork()
    replica.began(work, 10)
    return work


@pytest.fixture
async def triton() -> AsyncIterator[ControlledTriton]:
    names = (*MEMBERS, "embeddings", "t.1")
    fake = await ControlledTriton({name: FakeModel(load_s=0.1) for name in names}).start()
    yield fake
    await fake.stop()


@pytest.fixture
async def scene(triton: ControlledTriton) -> AsyncIterator[Scene]:
    scene = Scene(triton)
    yield scene
    await scene.close()


async def test_a_healthy_model_is_left_alone(scene: Scene) -> None:
    replica = await scene.watch()
    work = work_on(replica)
    await scene.rounds("tensorrt_llm")
    assert replica.health.is_up
    assert work.given_up == []
    assert all(model.loads == 0 for model in scene.triton.models.values())


@pytest.mark.parametrize("member", MEMBERS[:-1])
async def test_a_dead_process_gives_up_its_work_and_is_revived(scene: Scene, member: str) -> None:
    replica = await scene.watch()
    work = work_on(replica)
    scene.triton.models[member].dead = True
    await until(lambda: not replica.health.is_up)
    assert replica.health.is_reviving
    assert work.given_up == ["a process of the model died"]
    await until(lambda: replica.health.is_up)
    assert [name for name, model in scene.triton.models.items() if model.loads] == [member]
    assert scene.deaths == [("a", "a process of the model died")]


async def test_a_frozen_process_is_revived_after_three_pings_without_an_answer(scene: Scene) -> None:
    replica = await scene.watch()
    work = work_on(replica)
    scene.triton.models["tensorrt_llm"].frozen = True
    await until(lambda: bool(work.given_up))
    assert scene.triton.models["tensorrt_llm"].pings >= QUICK.misses
    await until(lambda: replica.health.is_up)
    assert scene.triton.models["tensorrt_llm"].loads == 1


async def test_several_broken_models_are_all_revived(scene: Scene) -> None:
    replica = await scene.watch()
    for member in MEMBERS[:-1]:
        scene.triton.models[member].dead = True
    await until(lambda: not replica.health.is_up)
    await until(lambda: replica.health.is_up)
    assert not any(model.dead for model in scene.triton.models.values())
    assert replica.revivals == sum(model.loads for model in scene.triton.models.values()) >= 3
    assert len(scene.deaths) == 1, "they died together"


async def test_the_embeddings_process_is_revived_too(scene: Scene) -> None:
    replica = await scene.watch(EMBEDDINGS)
    scene.triton.models["embeddings"].dead = True
    await until(lambda: not replica.health.is_up)
    await until(lambda: replica.health.is_up)
    assert scene.triton.models["embeddings"].loads == 1


async def test_a_busy_model_whose_pings_queue_is_not_taken_for_dead(scene: Scene) -> None:
    replica = await scene.watch(EMBEDDINGS)
    work_on(replica)
    scene.triton.models["embeddings"].frozen = True
    await scene.rounds("embeddings", 8)
    assert replica.health.is_up


async def test_requests_that_progress_excuse_a_model_that_leaves_pings_unanswered(scene: Scene) -> None:
    replica = await scene.watch()
    replica.last_progress_s = float("inf")
    scene.triton.models["tensorrt_llm"].frozen = True
    await scene.rounds("tensorrt_llm", 8)
    assert replica.health.is_up


async def test_a_slow_machine_is_not_taken_for_a_dead_one(triton: ControlledTriton) -> None:
    limits = ProbeLimits(period_s=0.15, late_s=0.05, punctual_s=5.0)
    scene = Scene(triton, limits=limits)
    replica = await scene.watch()
    for member in MEMBERS[:-1]:
        triton.models[member].slow_s = 0.1  # each of its answers is late
    await scene.rounds("tensorrt_llm", 8)
    assert replica.health.is_up
    await scene.close()


async def test_a_refusal_is_an_answer(scene: Scene) -> None:
    replica = await scene.watch()
    scene.triton.models["preprocessing"].refusal = "unexpected shape"
    await scene.rounds("preprocessing")
    assert replica.health.is_up


async def test_an_engine_that_its_model_starts_again_is_awaited_and_nothing_is_loaded(
    scene: Scene,
) -> None:
    replica = await scene.watch()
    work = work_on(replica)
    scene.triton.models["tensorrt_llm"].refusal = f"engine_failed: {ENGINE_AWAY}"
    await until(lambda: not replica.health.is_up)
    assert replica.health.is_reviving
    await scene.rounds("tensorrt_llm")
    assert not replica.health.is_up
    assert len(work.given_up) == 1
    scene.triton.models["tensorrt_llm"].refusal = ""
    await until(lambda: replica.health.is_up)
    assert all(model.loads == 0 for model in scene.triton.models.values())
    ((name, why),) = scene.deaths
    assert (name, "engine process died" in why) == ("a", True)


async def test_a_model_that_stays_dead_is_not_reported_as_healthy(scene: Scene) -> None:
    replica = await scene.watch()
    scene.triton.models["preprocessing"].dead = True
    scene.triton.models["preprocessing"].stays_dead = True
    await until(lambda: scene.triton.models["preprocessing"].loads == 2)
    assert not replica.health.is_up
    scene.triton.models["preprocessing"].stays_dead = False
    await until(lambda: replica.health.is_up)


async def test_a_failed_load_is_retried(scene: Scene) -> None:
    replica = await scene.watch()
    model = scene.triton.models["tensorrt_llm"]
    model.dead, model.load_error = True, "no memory"
    await until(lambda: model.loads == 1)
    assert replica.health.is_reviving
    model.load_error = ""
    await until(lambda: replica.health.is_up)


async def test_a_router_that_is_not_in_control_waits_for_the_one_that_is(scene: Scene) -> None:
    replica = await scene.watch()
    other = Scene(scene.triton)
    scene.in_control = False
    mine = work_on(replica)
    scene.triton.models["tensorrt_llm"].dead = True
    await until(lambda: bool(mine.given_up))
    assert replica.health.is_reviving
    assert scene.triton.models["tensorrt_llm"].loads == 0
    await other.watch()
    await until(lambda: replica.health.is_up)
    assert scene.triton.models["tensorrt_llm"].loads == 1
    await other.close()


async def test_without_the_secret_a_dead_replica_is_down_until_it_recovers_by_itself(
    triton: ControlledTriton,
) -> None:
    scene = Scene(triton, secret="")
    replica = await scene.watch()
    triton.models["tensorrt_llm"].dead = True
    await until(lambda: not replica.health.is_up)
    assert not replica.health.is_reviving
    triton.models["tensorrt_llm"].dead = False
    await until(lambda: replica.health.is_up)
    await scene.close()


async def test_work_in_a_process_that_was_replaced_externally_is_given_up(triton: ControlledTriton) -> None:
    scene = Scene(
        triton, limits=ProbeLimits(period_s=0.05, late_s=patience(0.1), misses=1000, punctual_s=patience(5.0))
    )
    replica = await scene.watch()
    await scene.rounds("tensorrt_llm")
    work = work_on(replica)
    model = triton.models["tensorrt_llm"]
    model.frozen = True
    await scene.rounds("tensorrt_llm", 4)
    await scene.server.control.revive("tensorrt_llm")
    await until(lambda: bool(work.given_up))
    assert {*work.given_up} == {"the model was loaded again"}
    assert replica.health.is_up
    await scene.close()


async def test_work_without_news_for_long_is_probed(triton: ControlledTriton) -> None:
    scene = Scene(
        triton, limits=ProbeLimits(period_s=0.05, silence_s=0.2, one_token_s=patience(0.3), late_s=60)
    )
    replica = await scene.watch()
    work = work_on(replica)
    await until(lambda: triton.models["ensemble"].pings >= 2)
    assert work.given_up == []
    triton.models["ensemble"].frozen = True
    await until(lambda: bool(work.given_up))
    assert work.given_up == ["the model generates nothing"]
    replica.ended(work)
    await until(lambda: replica.health.is_up)
    assert triton.models["tensorrt_llm"].loads == 1
    await scene.close()


async def test_a_long_prompt_whose_steps_go_on_is_not_given_up(triton: ControlledTriton) -> None:
    scene = Scene(
        triton, limits=ProbeLimits(period_s=0.05, silence_s=0.2, one_token_s=patience(0.2), late_s=60)
    )
    replica = await scene.watch()
    work = work_on(replica)
    triton.models["ensemble"].frozen = True
    replica.last_step_s = inf
    await scene.rounds("tensorrt_llm", 12)
    assert work.given_up == []
    replica.last_step_s = -inf
    await until(lambda: bool(work.given_up))
    await scene.close()


async def test_pings_do_not_speak_for_an_engine_that_generates_nothing(triton: ControlledTriton) -> None:
    limits = ProbeLimits(period_s=0.05, silence_s=0.2, one_token_s=patience(0.2), late_s=60)
    scene = Scene(triton, limits=limits, in_control=False)
    replica = await scene.watch()
    work = work_on(replica)
    triton.models["ensemble"].frozen = True
    await until(lambda: bool(work.given_up))
    await scene.rounds("tensorrt_llm")
    assert replica.health.is_reviving
    await scene.server.control.revive("tensorrt_llm")
    await until(lambda: replica.health.is_up)
    await scene.close()


async def test_a_triton_that_is_gone_is_down_and_comes_back(scene: Scene) -> None:
    replica = await scene.watch()
    await scene.triton.stop()
    await until(lambda: not replica.health.is_up)
    assert not replica.is_loaded
    assert not replica.health.is_reviving
    await scene.triton.start()
    await until(lambda: replica.health.is_up)
    assert replica.is_loaded


async def test_a_replica_on_a_lost_triton_is_not_reviving(scene: Scene) -> None:
    replica = await scene.watch()
    scene.in_control = False
    scene.triton.models["tensorrt_llm"].dead = True
    await until(lambda: replica.health.is_reviving)
    await scene.triton.stop()
    await until(lambda: not replica.health.is_reviving)
    assert not replica.health.is_up


async def test_a_frozen_triton_is_down_and_none_of_its_models_is_blamed(scene: Scene) -> None:
    replica = await scene.watch()
    work = work_on(replica)
    scene.triton.frozen = True
    await until(lambda: not replica.health.is_up)
    assert work.given_up == ["Triton does not answer"]
    assert not replica.health.is_reviving
    scene.triton.frozen = False
    await until(lambda: replica.health.is_up)
    assert all(model.loads == 0 for model in scene.triton.models.values())


async def test_an_unloaded_model_is_not_revived(scene: Scene) -> None:
    replica = await scene.watch()
    scene.triton.models["ensemble"].loaded = False
    await until(lambda: not replica.is_loaded)
    scene.triton.models["tensorrt_llm"].dead = True
    pings = scene.triton.models["tensorrt_llm"].pings
    await asyncio.sleep(4 * QUICK.period_s)
    assert scene.triton.models["tensorrt_llm"].pings <= pings + 1
    assert scene.triton.models["tensorrt_llm"].loads == 0
    assert replica.health.is_up


async def test_a_ping_that_was_under_way_when_its_model_was_unloaded_revives_nobody(
    triton: ControlledTriton,
) -> None:
    model = triton.models["tensorrt_llm"]
    for each in triton.models.values():  # nothing is known of any
        each.slow_s = 0.3
    scene = Scene(triton, limits=ProbeLimits(period_s=0.05, late_s=60))
    replica = await scene.watch()
    await until(lambda: model.pings > 0)
    triton.models["ensemble"].loaded = False
    await until(lambda: not replica.is_loaded)
    model.dead = True
    await asyncio.sleep(2 * model.slow_s)
    assert model.loads == 0
    assert scene.deaths == []
    await scene.close()


async def test_the_death_of_a_users_own_model_is_learned_from_its_requests(scene: Scene) -> None:
    replica = await scene.watch(TENSORS)
    scene.triton.models["t.1"].dead = True
    work = work_on(replica)
    replica.failed(Failure.STUB_DEAD, 1.0)
    await until(lambda: replica.health.is_up)
    assert scene.triton.models["t.1"].loads == 1
    assert work.given_up == ["a process of the model died"]
    assert scene.triton.models["t.1"].pings == 0


async def test_a_death_wrongly_reported_by_requests_is_corrected_by_pings(scene: Scene) -> None:
    replica = await scene.watch()
    await scene.rounds("tensorrt_llm")
    replica.failed(Failure.STUB_DEAD, 1.0)
    assert not replica.health.is_up
    await until(lambda: replica.health.is_up)
    assert scene.triton.models["tensorrt_llm"].loads == 0


async def test_a_forgotten_release_is_pinged_no_more(scene: Scene) -> None:
    await scene.watch()
    await scene.watch(EMBEDDINGS)
    scene.fleet.forget(TEXT.name)
    await scene.rounds("embeddings")
    pings = scene.triton.models["tensorrt_llm"].pings
    await scene.rounds("embeddings")
    assert scene.triton.models["tensorrt_llm"].pings == pings
