"""Rollouts brought on in a real store, second by second, with all else made up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import pytest
import sqlalchemy as sql
from sqlalchemy import Connection

from router.control.releases import canary_runner, records
from router.control.releases.arm_stats import ArmStats, Sample, stats_to_json
from router.control.releases.canary_runner import CanaryRunner
from router.control.releases.evidence import Proportion
from router.control.releases.next_steps import Situation
from router.control.releases.paired_times import PairedTimes
from router.control.releases.plan import Plan, Tolerance
from router.control.releases.proof import Proof
from router.control.releases.records import GoldenPrompt, Rollout, RolloutState
from router.control.releases.rehearsal import Rehearsed
from router.control.releases.shadow_figures import ShadowSums
from router.control.releases.states import State
from router.control.releases.writes import COUNTER, write_event
from router.core.manifest import Manifest
from router.routing.split import ModelSplit, Shadow
from router.store.database import Store, StoreAccess, read_counters
from router.store.schema import arm_figures, shadow_figures
from tests.router.control.releases.values import MODEL, find, manifest, office, put
from tests.router.tenants.values import NOW_S
from tests.waiting import until

PLAN = Plan(weights=(0.1, 0.5, 1.0), min_requests=20, min_duration_s=30)
GOLDEN = (GoldenPrompt("2+2", contains="4"),)
GOOD = ArmStats(errors=Proportion(0, 100))


@dataclass
class Wrong:
    text: str

    def sentence(self) -> str:
        return self.text


@dataclass
class FakeGolden:
    """Answers `wrong` for as long as there is something in it; `broken` is raised instead."""

    wrong: list[list[Wrong]] = field(default_factory=list)
    broken: Exception | None = None
    asked: list[str] = field(default_factory=list)

    async def failures(self, of: Manifest, prompts: Sequence[GoldenPrompt]) -> Sequence[Wrong]:
        self.asked.append(of.name)
        if self.broken is not None:
            raise self.broken
        return self.wrong.pop(0) if self.wrong else []


@dataclass
class FakeRehearsals:
    """Comes to what it is told to; `broken` is raised instead."""

    found: Rehearsed = field(default_factory=Rehearsed)
    broken: Exception | None = None
    asked: list[tuple[str, str, float]] = field(default_factory=list)

    async def compare(self, canary: Manifest, stable: Manifest, allowed_ratio: float) -> Rehearsed:
        self.asked.append((canary.name, stable.name, allowed_ratio))
        if self.broken is not None:
            raise self.broken
        return self.found


@dataclass
class Stage:
    """Version 1 serves, version 2 is to take over; time goes on as it is told to."""

    store: Store
    access: StoreAccess
    golden: FakeGolden = field(default_factory=FakeGolden)
    rehearsals: FakeRehearsals | None = None
    down: set[int] = field(default_factory=set)
    now_s: float = NOW_S
    rolled_back: list[str] = field(default_factory=list)
    runner: CanaryRunner = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        self.runner = CanaryRunner(
            self.access,
            self.golden,
            lambda of: of.version not in self.down,
            self.rolled_back.append,
            self.rehearsals,
        )

    def begin(self, plan: Plan = PLAN, golden: Sequence[GoldenPrompt] = ()) -> None:
        office(self.store).begin_rollout(MODEL, 2, plan, golden)

    async def tick(self, after_s: float = 1.0) -> Rollout:
        self.now_s += after_s
        await self.runner.tick(self.now_s)
        await asyncio.sleep(0)  # golden prompts are asked beside it
        return self.rollout

    def rehearses(self, found: Rehearsed, broken: Exception | None = None) -> FakeRehearsals:
        self.rehearsals = FakeRehearsals(found, broken)
        self.restart()
        return self.rehearsals

    async def started(self) -> Rollout:
        self.begin()
        put(self.store, 2, State.READY)
        await self.tick()
        return self.rollout

    async def over(self, step: int, canary: ArmStats = GOOD, stable: ArmStats = GOOD) -> Rollout:
        """One more step has lasted and been asked long enough."""
        self.measure(step, 2, canary)
        self.measure(step, 1, stable)
        return await self.tick(31)

    def measure(self, step: int, version: int, stats: ArmStats, process: str = "one") -> None:
        row = {
            "rollout_id": self.rollout.id,
            "step": step,
            "version": version,
            "process": process,
            "figures": stats_to_json(stats),
            "at_s": self.now_s,
        }
        with self.store.begin() as connection:
            connection.execute(self.store.insert_or_update(arm_figures, row))

    @property
    def rollout(self) -> Rollout:
        with self.store.read() as connection:
            return records.list_rollouts(connection, MODEL)[0]

    def split(self) -> ModelSplit:
        with self.store.read() as connection:
            found = records.find_split(connection, MODEL)
        assert found is not None
        return found

    @property
    def events(self) -> list[tuple[str, str]]:
        """The newest first, without people's own."""
        with self.store.read() as connection:
            found = records.list_events(connection, MODEL)
        ours = {"advance", "promote", "rollback", "idle", "hold"}
        return [(event.what, event.reason) for event in found if event.what in ours and event.version == 2]

    @property
    def changes(self) -> int:
        with self.store.read() as connection:
            return read_counters(connection).get(COUNTER, 0)


@pytest.fixture
async def stage(lite: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(canary_runner, "_GOLDEN_AGAIN_S", 0.0)
    acts = office(lite)
    for version in (1, 2):
        acts.add(manifest(version))
    acts.promote(MODEL, 1)
    put(lite, 1, State.READY)
    access = StoreAccess(lite)
    made = Stage(lite, access)
    yield made
    await made.runner.close()
    access.close()


async def test_a_rollout_starts_when_its_canary_is_ready_and_not_before(stage: Stage) -> None:
    stage.begin()
    assert (await stage.tick()).progress.step == -1
    assert stage.split().arms == ((1, 1.0),)
    put(stage.store, 2, State.READY)
    begun = await stage.tick()
    assert (begun.progress.step, begun.progress.step_began_s) == (0, stage.now_s)
    assert stage.split().arms == ((2, 0.1), (1, 0.9))
    assert (stage.split().rollout_id, stage.split().step) == (begun.id, 0)
    assert stage.events == [("advance", "ready: starts with 10% of the traffic")]


async def test_a_rollout_goes_through_its_steps_and_ends_with_the_stable_release_on_standby(
    stage: Stage,
) -> None:
    await stage.started()
    assert (await stage.over(0)).progress.step == 1
    assert stage.split().arms == ((2, 0.5), (1, 0.5))
    await stage.tick()
    assert (await stage.over(1)).progress.step == 2
    assert stage.split().weight_of(2) == 1.0
    await stage.tick()
    ended = await stage.over(2, stable=ArmStats())
    assert (ended.state, ended.ended_s) == (RolloutState.PROMOTED, stage.now_s)
    assert (stage.split().arms, stage.split().standby, stage.split().rollout_id) == (((2, 1.0),), 1, None)
    assert find(stage.store, 1).wanted
    assert [what for what, _ in stage.events] == ["promote", "advance", "advance", "advance"]
    before = stage.changes
    await stage.tick()
    assert stage.changes == before


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_broken_canary_rolls_back_in_any_step_and_is_no_standby(stage: Stage, step: int) -> None:
    await stage.started()
    for past in range(step):
        await stage.over(past)
        await stage.tick()
    ended = await stage.over(step, ArmStats(errors=Proportion(30, 60)), ArmStats() if step == 2 else GOOD)
    assert ended.state is RolloutState.ROLLED_BACK
    assert ended.reason.startswith("errors: ")
    assert (stage.split().arms, stage.split().standby, stage.split().rollout_id) == (((1, 1.0),), None, None)
    assert stage.events[0] == ("rollback", ended.reason)
    assert stage.rolled_back == [MODEL]
    assert not find(stage.store, 2).wanted
    assert ended.figures["canary"]["errors"] == {"hits": 30, "total": 60 + 100 * step}
    assert max(gate["against"] for gate in ended.figures["gates"]) >= 1


async def test_a_rollback_keeps_the_standby_from_before(stage: Stage) -> None:
    acts = office(stage.store)
    acts.add(manifest(3))
    put(stage.store, 3, State.READY)
    acts.promote(MODEL, 3)
    assert stage.split().standby == 1
    await stage.started()
    await stage.over(0, ArmStats(errors=Proportion(30, 60)), stable=ArmStats())
    assert (stage.split().arms, stage.split().standby) == (((3, 1.0),), 1)


async def test_a_paused_rollout_stays_where_it_is_until_it_is_resumed(stage: Stage) -> None:
    await stage.started()
    office(stage.store).pause(MODEL)
    paused = await stage.over(0)
    assert (paused.state, paused.reason, paused.progress.step) == (RolloutState.PAUSED, "paused", 0)
    office(stage.store).pause(MODEL, paused=False)
    assert (await stage.tick()).progress.step == 1


async def test_a_paused_rollout_still_rolls_back(stage: Stage) -> None:
    await stage.started()
    office(stage.store).pause(MODEL)
    assert (await stage.over(0, ArmStats(errors=Proportion(30, 60)))).state is RolloutState.ROLLED_BACK


async def test_a_rollout_paused_before_its_start_does_not_start(stage: Stage) -> None:
    stage.begin()
    office(stage.store).pause(MODEL)
    put(stage.store, 2, State.READY)
    assert (await stage.tick()).progress.step == -1


async def test_another_router_continues_a_rollout_where_one_stopped(stage: Stage) -> None:
    await stage.started()
    await stage.over(0)
    stage.restart()
    assert (await stage.tick()).reason == "step 2 needs 20 more requests and 29 s more"
    stage.restart()
    assert (await stage.over(1)).progress.step == 2


async def test_measurements_of_two_routers_are_added_up(stage: Stage) -> None:
    await stage.started()
    for process in ("one", "two"):
        stage.measure(0, 2, ArmStats(errors=Proportion(2, 12)), process)
        stage.measure(0, 1, GOOD, process)
    found = await stage.tick()
    assert found.reason == "errors: 16.7% of 24 against 0.0% of 200"
    assert found.state is RolloutState.ROLLED_BACK


async def test_a_slow_canary_is_found_in_the_stored_times(stage: Stage) -> None:
    await stage.started()
    for version, slow in ((1, 1.0), (2, 2.0)):
        samples = [Sample(False, 0.1 * slow, 0.02 * slow, 50, at_s=NOW_S + each / 3) for each in range(60)]
        stage.measure(0, version, ArmStats().with_all(samples))
    found = await stage.tick()
    assert found.state is RolloutState.ROLLED_BACK
    assert "2.00 times the stable release's" in found.reason


async def test_while_the_store_is_unreachable_no_decision_is_made_and_nothing_is_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.started()
    stage.measure(0, 2, GOOD)
    stage.measure(0, 1, GOOD)
    read = stage.store.read

    def away() -> object:
        raise sql.exc.OperationalError("select", {}, Exception("gone"))

    stage.store.read = away  # type: ignore[method-assign, assignment]  # a store that cannot be reached
    for _ in range(3):
        stage.now_s += 31
        await stage.runner.tick(stage.now_s)
    stage.store.read = read  # type: ignore[method-assign]  # it is back
    assert [each.message for each in caplog.records if "waiting for the store" in each.message] == [
        "rollouts are waiting for the store: the store of this server cannot be reached at the moment"
    ]
    assert stage.rollout.progress.step == 0
    assert (await stage.tick()).progress.step == 1


async def test_a_rollout_without_traffic_waits_and_reports_it_once(stage: Stage) -> None:
    await stage.started()
    for _ in range(3):
        found = await stage.tick(400)
    assert found.state is RolloutState.RUNNING
    assert found.reason == "step 1 has had no request in 1,200 s: it continues when requests come"
    assert [what for what, _ in stage.events] == ["idle", "advance"]
    stage.measure(0, 1, GOOD)
    assert (await stage.tick()).reason.startswith("the canary got none of the 100 requests of step 1")
    assert (await stage.over(0)).progress.step == 1


async def test_a_canary_that_cannot_be_loaded_ends_its_rollout_with_the_reason(stage: Stage) -> None:
    stage.begin()
    put(stage.store, 2, State.FAILED, reason="the weights are cut short")
    ended = await stage.tick()
    assert (ended.state, ended.reason) == (
        RolloutState.ROLLED_BACK,
        "smol@2 failed: the weights are cut short",
    )
    assert stage.split().arms == ((1, 1.0),)
    assert not find(stage.store, 2).wanted


async def test_a_canary_whose_servers_stay_down_rolls_back(stage: Stage) -> None:
    await stage.started()
    stage.down = {2}
    assert (await stage.tick()).state is RolloutState.RUNNING
    assert (await stage.tick(10)).state is RolloutState.RUNNING
    stage.down = set()
    await stage.tick()
    stage.down = {2}
    assert (await stage.tick(19)).state is RolloutState.RUNNING
    ended = await stage.tick(20)
    assert (ended.state, ended.reason) == (
        RolloutState.ROLLED_BACK,
        "no replica of smol@2 has been up for 20 s",
    )


async def test_an_outage_of_both_releases_is_not_held_against_the_canary(stage: Stage) -> None:
    await stage.started()
    stage.down = {1, 2}
    for _ in range(3):
        assert (await stage.tick(30)).state is RolloutState.RUNNING
    put(stage.store, 2, State.LOADING)  # Triton is back, the canary not yet
    stage.down = {2}
    for _ in range(3):
        assert (await stage.tick(30)).state is RolloutState.RUNNING
    assert (await stage.over(0)).reason == "waiting for the canary to be ready again"


async def test_golden_prompts_run_before_any_traffic_and_in_each_step(stage: Stage) -> None:
    stage.begin(golden=GOLDEN)
    put(stage.store, 2, State.READY)
    waits = await stage.tick()
    assert waits.reason == "waiting for its golden prompts before it gets traffic"
    assert (await stage.tick()).progress.step == 0
    await stage.tick()
    assert (await stage.over(0)).progress.step == 1
    await stage.tick()
    assert stage.golden.asked == ["smol@2"] * 3


async def test_golden_prompts_that_fail_twice_keep_a_canary_from_any_traffic(stage: Stage) -> None:
    stage.golden.wrong = [[Wrong("'2+2' got '5'")], [Wrong("'2+2' got '6'")]]
    stage.begin(golden=GOLDEN)
    put(stage.store, 2, State.READY)

    async def is_over() -> bool:
        return (await stage.tick()).state.is_over

    await until(is_over)
    ended = stage.rollout
    assert ended.state is RolloutState.ROLLED_BACK
    assert ended.reason == "golden prompts: 1 failed, 0 allowed ('2+2' got '6')"
    assert stage.split().arms == ((1, 1.0),)
    assert not find(stage.store, 2).wanted


async def test_golden_prompts_that_failed_once_are_run_again(stage: Stage) -> None:
    stage.golden.wrong = [[Wrong("no answer within 60 s")]]
    stage.begin(golden=GOLDEN)
    put(stage.store, 2, State.READY)
    await stage.tick()
    await asyncio.sleep(0.01)
    assert (await stage.tick()).progress.step == 0


async def test_golden_prompts_that_cannot_be_run_are_tried_until_they_can(stage: Stage) -> None:
    stage.golden.broken = OSError("no template")
    stage.begin(golden=GOLDEN)
    put(stage.store, 2, State.READY)
    for _ in range(4):
        assert (await stage.tick()).progress.step == -1
    stage.golden.broken = None
    for _ in range(3):
        await stage.tick()
    assert stage.rollout.progress.step == 0


async def test_golden_prompts_that_can_never_be_run_end_the_rollout(stage: Stage) -> None:
    stage.golden.broken = OSError("no template")
    stage.begin(golden=GOLDEN)
    put(stage.store, 2, State.READY)
    for _ in range(40):
        if (await stage.tick()).state.is_over:
            break
    assert stage.rollout.state is RolloutState.ROLLED_BACK
    assert "they could not be asked" in stage.rollout.reason
    assert stage.split().arms == ((1, 1.0),)
    assert len(stage.golden.asked) == 10


async def test_a_standby_unloaded_during_a_decision_stays_unloaded(stage: Stage) -> None:
    acts = office(stage.store)
    acts.add(manifest(3))
    put(stage.store, 3, State.READY)
    acts.promote(MODEL, 3)
    acts.begin_rollout(MODEL, 2, PLAN)
    put(stage.store, 2, State.READY)
    read = stage.access.read

    async def read_and_be_overtaken(act: Callable[[Connection], list[Situation]]) -> list[Situation]:
        found = await read(act)
        acts.unload(MODEL, 1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.access, "read", read_and_be_overtaken)
        assert (await stage.tick()).progress.step == -1, "what was decided was of another split"
    assert (await stage.tick()).progress.step == 0
    assert stage.split().standby is None
    assert not find(stage.store, 1).wanted


async def test_a_manual_rollback_during_a_decision_is_not_overwritten(stage: Stage) -> None:
    """The runner has read, a person rolls back, and only then the runner writes."""
    await stage.started()
    stage.measure(0, 2, GOOD)
    stage.measure(0, 1, GOOD)
    write = stage.access.write

    async def later(act: object) -> object:
        office(stage.store).roll_back(MODEL, "by hand")
        return await write(act)  # type: ignore[arg-type]  # passed on as it came

    stage.access.write = later  # type: ignore[method-assign, assignment]  # somebody is quicker
    ended = await stage.tick(31)
    assert (ended.state, ended.reason) == (RolloutState.ROLLED_BACK, "by hand")
    assert stage.split().arms == ((1, 1.0),)
    assert [what for what, _ in stage.events] == ["advance"]


async def test_promoting_the_canary_by_hand_ends_the_rollout(stage: Stage) -> None:
    await stage.started()
    office(stage.store).promote(MODEL)
    assert (await stage.tick()).state is RolloutState.PROMOTED
    assert stage.split().arms == ((2, 1.0),)


EVEN = PairedTimes(((0.102, 0.1),) * 8)


async def test_a_canary_is_measured_beside_the_stable_release_before_it_has_traffic(
    stage: Stage,
) -> None:
    asked = stage.rehearses(Rehearsed(EVEN, EVEN)).asked
    stage.begin(golden=GOLDEN)
    assert (await stage.tick(), asked)[1] == [], "it is not ready yet"
    put(stage.store, 2, State.READY)
    await stage.tick()
    assert asked == [], "the golden prompts come first"
    waits = await stage.tick()
    assert waits.reason == "being compared with smol@1 before it gets traffic"
    begun = await stage.tick()
    line = "before traffic: first token 1.02 times, between tokens 1.02 times, 8 pairs"
    assert (begun.progress.step, asked) == (0, [("smol@2", "smol@1", 1.25)])
    assert stage.events == [("advance", f"ready: starts with 10% of the traffic; {line}")]
    after = await stage.over(0)
    assert after.figures["before_traffic"]["line"] == line, "it is kept with what comes later"
    assert len(asked) == 1


async def test_a_canary_that_is_slower_in_the_rehearsal_meets_nobody(stage: Stage) -> None:
    slow = PairedTimes(((0.4, 0.1),) * 10)
    stage.rehearses(Rehearsed(EVEN, slow, "between tokens 400.0 ms against 100.0 ms"))
    stage.begin()
    put(stage.store, 2, State.READY)
    for _ in range(3):
        ended = await stage.tick()
    assert (ended.state, ended.progress.step) == (RolloutState.ROLLED_BACK, -1)
    assert ended.reason == "between tokens 400.0 ms against 100.0 ms"
    assert ended.figures["before_traffic"]["between_tokens"]["ratio"] == 4.0
    assert stage.events == [("rollback", ended.reason)]
    assert stage.split().arms == ((1, 1.0),)
    assert not find(stage.store, 2).wanted
    assert stage.rolled_back == [MODEL]


async def test_a_rehearsal_that_cannot_be_held_is_tried_again_and_then_does_without(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_runner, "_REHEARSE_AGAIN_S", 0.0)
    asked = stage.rehearses(Rehearsed(), OSError("the stable release does not answer")).asked
    stage.begin()
    put(stage.store, 2, State.READY)
    for _ in range(12):
        await stage.tick()
    assert (stage.rollout.progress.step, len(asked)) == (0, 3)
    assert stage.rollout.figures["before_traffic"]["line"] == (
        "before traffic: nothing could be measured: see the router's log"
    )


async def test_a_paused_rollout_is_not_rehearsed_twice(stage: Stage) -> None:
    asked = stage.rehearses(Rehearsed(EVEN, EVEN)).asked
    stage.begin()
    office(stage.store).pause(MODEL)
    put(stage.store, 2, State.READY)
    for _ in range(3):
        assert (await stage.tick()).progress.step == -1
    stage.restart()
    office(stage.store).pause(MODEL, paused=False)
    assert (await stage.tick()).progress.step == 0
    assert len(asked) == 1


def died(stage: Stage, version: int) -> None:
    with stage.store.begin() as connection:
        write_event(
            connection, stage.now_s, MODEL, version, "died", "on triton-0: a process of the model died"
        )


async def test_a_canary_that_died_once_is_held_until_somebody_resumes_the_rollout(stage: Stage) -> None:
    await stage.started()
    died(stage, 2)
    held = await stage.over(0)
    assert (held.state, held.progress.step, held.ended_s) == (RolloutState.PAUSED, 0, None)
    assert held.reason.startswith("held: smol@2 died once, smol@1 never (on triton-0: ")
    assert stage.events[0] == ("hold", held.reason)
    stage.restart()
    assert (await stage.tick(60)).reason == held.reason
    assert len(stage.events) == 2, "it is told once"
    office(stage.store).pause(MODEL, paused=False)
    assert (await stage.tick()).progress.step == 1
    assert stage.rollout.figures["deaths"]["canary"] == 1


async def test_a_canary_that_died_twice_rolls_back_held_or_not(stage: Stage) -> None:
    await stage.started()
    died(stage, 2)
    await stage.tick()
    died(stage, 2)
    ended = await stage.tick()
    assert ended.state is RolloutState.ROLLED_BACK
    assert ended.reason.startswith("smol@2 died 2 times in this rollout, smol@1 never")
    assert stage.split().arms == ((1, 1.0),)


async def test_a_canary_that_died_is_not_promoted(stage: Stage) -> None:
    await stage.started()
    for step in (0, 1):
        await stage.over(step)
        await stage.tick()
    died(stage, 2)
    held = await stage.over(2)
    assert (held.state, held.progress.step) == (RolloutState.PAUSED, 2)


async def test_a_death_of_both_releases_is_not_held_against_the_canary(stage: Stage) -> None:
    await stage.started()
    died(stage, 1)
    died(stage, 2)
    assert (await stage.over(0)).progress.step == 1


async def test_a_held_canary_still_rolls_back_for_what_was_measured(stage: Stage) -> None:
    await stage.started()
    died(stage, 2)
    await stage.tick()
    ended = await stage.over(0, ArmStats(errors=Proportion(30, 60)))
    assert (ended.state, ended.reason[:8]) == (RolloutState.ROLLED_BACK, "errors: ")


def compared(stage: Stage, likeness: float, count: int) -> None:
    """So many answers of the shadow were that much like the stable release's."""
    sums = ShadowSums(0, count, 0, likeness * count, 1.0, 1.0)
    row = {"model": MODEL, "shadow": 2, "version": 1, "process": "one", "at_s": NOW_S, **asdict(sums)}
    with stage.store.begin() as connection:
        connection.execute(stage.store.insert_or_update(shadow_figures, row))


@pytest.mark.parametrize(("likeness", "step"), [(0.95, 0), (0.5, -1)])
async def test_a_canary_gets_traffic_once_its_answers_as_a_shadow_are_alike(
    stage: Stage, likeness: float, step: int
) -> None:
    plan = replace(PLAN, min_likeness=0.9, min_shadow_answers=20)
    with pytest.raises(ValueError, match="inflight release split smol 1=100% --shadow 2=10%"):
        stage.begin(plan)
    put(stage.store, 2, State.READY)
    office(stage.store).set_split(MODEL, [(1, 1.0)], None, Shadow(2, 0.1))
    stage.begin(plan)
    compared(stage, likeness, 12)
    assert (await stage.tick()).reason == "waiting for 8 more shadow answers"
    compared(stage, likeness, 20)
    after = await stage.tick()
    assert after.progress.step == step
    assert after.state is (RolloutState.RUNNING if step == 0 else RolloutState.ROLLED_BACK)
    assert f"{likeness:.1%} alike over 20 shadow answers" in after.reason or step == 0
    assert f"{likeness:.1%} alike over 20 shadow answers" in stage.events[0][1]


async def test_what_canaries_have_shown_is_told_to_the_metrics(stage: Stage) -> None:
    told: list[Proof] = []

    def tell(proofs: Sequence[Proof]) -> None:
        told[:] = proofs

    rehearsals = FakeRehearsals(Rehearsed(EVEN, EVEN))
    stage.golden.wrong = [[Wrong("no")]] * 9
    stage.runner = CanaryRunner(
        stage.access, stage.golden, lambda of: True, rehearsals=rehearsals, on_proofs=tell
    )
    lenient = replace(PLAN, tolerance=Tolerance(golden_failures=1))
    stage.begin(lenient, (*GOLDEN, *GOLDEN))
    put(stage.store, 2, State.READY)
    for _ in range(6):
        await stage.tick()
    slowdowns = {"first_token": 1.02, "between_tokens": 1.02}
    assert [replace(each, gates={}) for each in told] == [Proof(MODEL, 2, slowdowns, 0.5)]
    assert told[0].gates["errors"] == (None, 0.0), "nobody has asked it for anything"
