"""FairQueue: they come in order, end once however a request ends, and nothing stays behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import StepCost
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.admission.capacity import UNKNOWN, Capacity
from router.admission.demand import Demand, Need, Progress, QueueEntry, Reason, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.gate import Gate, Turn, refusal_error
from router.admission.gates import Gates
from router.admission.policy import FirstCome, Policy
from router.admission.queue import EqualShares
from router.control.releases.arms import ArmRecorder
from router.core.objective import Objective
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER
from router.request.answer import Answers
from router.request.permit import Permit, Permits
from router.routing.replicas import Fleet
from router.store.database import Store, StoreAccess
from router.telemetry.accounts import RequestAccounts
from router.telemetry.metrics import Metrics
from tests.fakes.job import FakeJob
from tests.fakes.tenancy import FakeTenancy
from tests.fakes.waiter import FakeWaiter
from tests.waiting import soon

ONE = Need(10, 10)
CLIENT_LEFT = InflightError(ErrorKind.CANCELLED, "the client left")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Counts:
    refusals: list[Reason] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)

    def refused(self, gate: Gate, tier: Tier, reason: Reason) -> None:
        self.refusals.append(reason)

    def heard(self, gate: Gate, entry: QueueEntry, now_s: float) -> None:
        self.heard_s.append(now_s)


class Impatient(FirstCome):
    """Refuses who asks for too much, and whoever has waited too long."""

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        if demand.max_tokens > 1000:
            return Refused(Reason.BUSY, "too much to do", 2.0)
        return super().offer(demand, progress, now_s)

    def hand_on(self, now_s: float) -> list[QueueEntry]:
        late = [entry for entry in self._waiting if now_s >= entry.demand.deadline_s]
        for entry in late:
            entry.refusal = Refused(Reason.TOO_LATE, "too late", 3.0)
            self.end(entry, now_s, finished=False)
        return [*late, *super().hand_on(now_s)]


@dataclass
class Scene:
    """One gate with so many slots, and tickets for those who come to it."""

    slots: int = 1
    policy: Policy = field(default_factory=Impatient)
    is_fixed_cost: bool = False
    patience_s: float = 3600.0
    clock: Clock = field(default_factory=Clock)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.gate = Gate(
            "tiny", "1", self.policy, self.objective, self.is_fixed_cost, self.counts, self.clock
        )
        self.gate.resize(Capacity(1, self.slots))

    def objective(self, model: str, tier: Tier) -> Objective:
        return Objective(model, tier, first_token_s=self.patience_s)

    def offer(self, need: Need = ONE, prompt_tokens: int = 0) -> tuple[Turn, FakeWaiter]:
        record = Record("test", "req", model="tiny", arrived_s=self.clock(), prompt_tokens=prompt_tokens)
        return self.gate.offer(record, need), FakeWaiter()

    async def coming(self, need: Need = ONE) -> tuple[Turn, FakeWaiter, asyncio.Task[None]]:
        turn, ticket = self.offer(need)
        task = asyncio.get_running_loop().create_task(turn.come(ticket))
        await asyncio.sleep(0)
        return turn, ticket, task


async def test_who_finds_a_slot_goes_on_at_once_and_others_when_one_ends() -> None:
    scene = Scene(slots=2)
    first, _, going = await scene.coming()
    _, _, second_going = await scene.coming()
    third, _, waiting = await scene.coming()
    assert going.done()
    assert second_going.done()
    assert not waiting.done()
    first.end(finished=True)
    await waiting
    third.end(finished=True)
    assert scene.gate.open_count == 1


async def test_a_queued_client_that_disconnects_is_not_waited_for() -> None:
    scene = Scene()
    running, _, _ = await scene.coming()
    turn, ticket, waiting = await scene.coming()
    ticket.cut(CLIENT_LEFT)
    with pytest.raises(InflightError, match="the client left"):
        await waiting
    turn.end(finished=False)
    running.end(finished=True)
    assert (scene.gate.open_count, scene.gate.waiting_count) == (0, 0)
    scene.policy.check()


async def test_a_request_whose_deadline_passes_in_the_queue_gets_a_retry_time() -> None:
    scene = Scene(patience_s=5.0)
    await scene.coming()
    _, _, waiting = await scene.coming()
    scene.clock.now_s = 5.0
    with pytest.raises(InflightError, match="too late") as refused:
        await soon(waiting)  # by the timer: nothing else happens
    assert refused.value.kind is ErrorKind.OVERLOADED
    assert 2.4 <= (refused.value.retry_after_s or 0) <= 3.6
    assert scene.counts.refusals == [Reason.TOO_LATE]


async def test_who_is_refused_at_once_takes_no_slot() -> None:
    scene = Scene()
    with pytest.raises(InflightError, match="too much to do"):
        scene.offer(Need(10, 5000))
    assert (scene.gate.open_count, scene.counts.refusals) == (0, [Reason.BUSY])


async def test_more_slots_wake_those_who_wait_for_them() -> None:
    scene = Scene()
    await scene.coming()
    tasks = [(await scene.coming())[2] for _ in range(3)]
    scene.gate.resize(Capacity(1, 4))
    await asyncio.gather(*tasks)


async def test_what_wants_more_slots_than_there_are_runs_alone() -> None:
    scene = Scene(slots=4)
    _, _, large = await scene.coming(Need(10, 10, sequences=64))
    _, _, small = await scene.coming()
    assert large.done()
    assert not small.done()
    small.cancel()


async def test_a_turn_ends_once_and_is_measured_once() -> None:
    scene = Scene()
    turn, _, _ = await scene.coming()
    for now_s in (1.0, 2.0):
        turn.heard(now_s)
    for _ in range(3):
        turn.end(finished=True)
    turn.heard(3.0)
    assert (scene.gate.open_count, scene.counts.heard_s) == (0, [1.0])
    scene.policy.check()


async def test_of_a_batch_model_the_whole_answer_is_what_is_heard() -> None:
    scene = Scene(slots=2, is_fixed_cost=True)
    (turn, _, _), (failing, _, _) = await scene.coming(), await scene.coming()
    scene.clock.now_s = 4.0
    turn.end(finished=True)
    failing.end(finished=False)
    assert scene.counts.heard_s == [4.0]


@dataclass
class Seen(FirstCome):
    """Remembers what was asked of it."""

    demands: list[Demand] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        self.demands.append(demand)
        return super().offer(demand, progress, now_s)


async def test_estimates_of_prompt_lengths_follow_the_measured_lengths() -> None:
    policy = Seen()
    scene = Scene(policy=policy)
    for _ in range(200):
        turn, _ = scene.offer(Need(1000, 10), prompt_tokens=600)
        turn.end(finished=True)
    scene.offer(Need(1000, 10))
    assert policy.demands[0].prompt_tokens == 1000
    assert 599 <= policy.demands[-1].prompt_tokens <= 605


@given(chance=st.floats(0, 1), retry_s=st.none() | st.floats(0, 1e6), reason=st.sampled_from(Reason))
def test_every_refusal_carries_an_honest_retry_time(
    chance: float, retry_s: float | None, reason: Reason
) -> None:
    error = refusal_error(Refused(reason, "because", retry_s), chance)
    if reason is Reason.TOO_LARGE:
        assert (error.kind.http_status, error.retry_after_s) == (413, None)
        return
    assert error.kind.http_status == 503
    if retry_s is not None:
        assert error.retry_after_s is not None
        assert error.retry_after_s == pytest.approx(max(retry_s, 1.25), rel=0.2 + 1e-9)


ACCOUNTS = RequestAccounts(Metrics())


async def test_a_second_attempt_that_is_refused_is_neither_billed_nor_held_against_its_release() -> None:
    tenancy = FakeTenancy()
    arms = ArmRecorder(StoreAccess(cast("Store", None)))
    gates = Gates(Fleet([]), Impatient, lambda model, tier: Objective(model, tier, first_token_s=0.01))
    gate = gates["tiny", "1"]
    gate.resize(Capacity(1, 1))
    gate.offer(Record("test", "other", model="tiny"), ONE)
    record = Record("test", "req", LOCAL_CALLER, model_version="1", rollout=(3, 1))
    record.dispatched_s = 1.0  # the first attempt was, and its prompt was too long
    answers = Answers(Permits(tenancy.as_tenancy, gates, ACCOUNTS), [arms])

    async def unreached(permit: Permit) -> None:
        raise AssertionError("it was admitted")

    with pytest.raises(InflightError, match="too late"):
        await answers.answer(FakeJob(ONE, unreached), record, lambda callback: None)
    assert (record.outcome, tenancy.used, dict(arms.arms)) == ("failed", [], {})
    assert tenancy.ledger.running("local") == 0
    gates.close()


POLICIES: list[Callable[[], Policy]] = [
    FirstCome,
    Impatient,
    lambda: Dispatcher(EqualShares(), OutputLengths()),
]


@dataclass(frozen=True)
class Visit:
    """One request: when it comes, what it wants, and which of its ways to end comes when."""

    comes_after: int
    need: Need
    tier: Tier
    end: str
    ends_after: int


VISITS = st.builds(
    Visit,
    st.integers(0, 8),
    st.builds(Need, st.integers(1, 200), st.integers(1, 1500), st.integers(1, 5)),
    st.sampled_from(Tier),
    st.sampled_from(["finish", "fail", "leave", "cancel"]),
    st.integers(0, 12),
)


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def play(visits: list[Visit], new_policy: Callable[[], Policy], seed: int) -> None:
    chance, tenancy = random.Random(seed), FakeTenancy()
    gates = Gates(Fleet([]), new_policy, Objective)
    permits = Permits(tenancy.as_tenancy, gates, ACCOUNTS)
    gate = gates["tiny", "1"]
    gate.resize(Capacity(1, 3, kv_tokens=4000, block_tokens=16))
    ended: list[str] = []

    async def visit(each: Visit, leaving: list[Callable[[], None]]) -> None:
        record = Record("test", "req", model_version="1", tier=each.tier)

        async def act(permit: Permit) -> None:
            record.dispatched_s = record.admitted_s
            permit.heard(gate.clock())
            await ticks(each.ends_after if each.end in ("finish", "fail") else 5)
            if each.end == "fail":
                raise InflightError(ErrorKind.ENGINE_FAILED, "broke")

        try:
            await Answers(permits).answer(FakeJob(each.need, act), record, leaving.append)
        except InflightError:
            pass
        finally:
            ended.append(record.outcome)

    async def disturb(each: Visit) -> None:
        leaving: list[Callable[[], None]] = []
        await ticks(each.comes_after)
        task = asyncio.get_running_loop().create_task(visit(each, leaving))
        if each.end in ("leave", "cancel"):
            await ticks(1 + each.ends_after)
            if each.end == "leave":
                for callback in leaving:
                    callback()
            else:
                task.cancel()
        if chance.random() < 0.2:
            sized = Capacity(1, chance.randint(1, 5), kv_tokens=4000, block_tokens=16)
            gate.resize(chance.choice([sized, UNKNOWN, replace(sized, step=StepCost(1.0, 0.01, 0.01))]))
        await asyncio.wait([task])

    await soon(asyncio.gather(*map(disturb, visits)))
    assert len(ended) == len(visits)
    assert (gate.open_count, gate.waiting_count, permits.open_count) == (0, 0, 0)
    assert tenancy.ledger.running("local") == 0
    gate._policy.check()
    assert gate.signals().running == 0
    assert sum(gate.signals().waiting.values()) == 0
    assert gate.taken_slots == 0
    gates.close()


@pytest.mark.parametrize("new_policy", POLICIES, ids=["first come", "impatient", "dispatcher"])
@settings(deadline=None)
@given(visits=st.lists(VISITS, min_size=1, max_size=10), seed=st.integers(0, 1000))
def test_whatever_happens_every_request_ends_once_and_no_slot_is_lost(
    new_policy: Callable[[], Policy], visits: list[Visit], seed: int
) -> None:
    asyncio.run(play(visits, new_policy, seed))
