from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import sqlalchemy as sql
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.arm_stats import PAST, ArmStats, Sample, stats_from_json, stats_to_json
from router.control.releases.arms import ArmFigures, ArmRecorder, Past, read_figures, sample_of
from router.control.releases.evidence import Proportion
from router.core.record import Record
from router.core.stages import EngineTimes
from router.routing.models import Lineup, ServedModel
from router.routing.split import ModelSplit
from router.store.database import Store, StoreAccess
from tests.fakes.pipeline import FakeGeneration, FakePipeline, words
from tests.router.running import EMBEDDER, MODEL, RunningRouter
from tests.tiers import examples

FAILED = InflightError(ErrorKind.ENGINE_FAILED, "the step broke")


@pytest.fixture
async def access(lite: Store) -> AsyncIterator[StoreAccess]:
    opened = StoreAccess(lite)
    yield opened
    opened.close()


def record(outcome: str = "finished", version: int = 2, **fields: object) -> Record:
    made = Record("/v1", "r-1", arrived_s=10.0)
    made.rollout, made.model_version, made.outcome = (7, 0), str(version), outcome
    made.dispatched_s, made.first_token_s, made.received_s = 11.0, 11.5, 13.5
    made.completion_tokens, made.opening = 21, "Sure"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def figures(store: Store) -> dict[tuple[int, int, str], ArmStats]:
    with store.read() as connection:
        found: list[ArmFigures] = read_figures(connection, 7)
    return {(each.step, each.version, each.process): each.stats for each in found}


def test_a_text_sample_is_timed_from_its_dispatch_to_the_release() -> None:
    sample = sample_of(record(), False, 1000.0)
    assert sample == Sample(False, 0.5, 0.1, 21, False, 1011.0)


def test_a_sample_without_text_has_the_time_of_the_whole_answer_and_no_tokens() -> None:
    assert sample_of(record(first_token_s=None, completion_tokens=0), False) == Sample(False, 2.5, at_s=11.0)


def test_a_sample_of_one_token_has_no_time_between_tokens() -> None:
    assert sample_of(record(completion_tokens=1), False).between_tokens_s is None


def test_the_time_between_tokens_is_taken_from_the_engines_clock() -> None:
    """Here all of them have come in one bundle at the end."""
    bundled = record(first_token_s=13.4, engine=EngineTimes(900.0, 900.1, 900.2, 904.2))
    assert sample_of(bundled, False).between_tokens_s == pytest.approx(0.2)


async def test_arm_stats_are_written_by_step_and_version_and_read_back(
    access: StoreAccess, lite: Store
) -> None:
    recorder = ArmRecorder(access, "one")
    recorder.closed(record(), None)
    recorder.closed(record(opening="I'm sorry, but I can't do that."), None)
    recorder.closed(record("failed"), FAILED)
    recorder.closed(record(version=1, rollout=(7, 1)), None)
    await recorder.write()
    found = figures(lite)
    canary = found[0, 2, "one"]
    assert (canary.errors, canary.refusals) == (Proportion(1, 3), Proportion(1, 2))
    assert canary.timed.first_token.parts[0][1].count == 2
    assert found[1, 1, "one"].errors == Proportion(0, 1)


async def test_cancelled_and_invalid_requests_do_not_count_for_a_release(
    access: StoreAccess, lite: Store
) -> None:
    recorder = ArmRecorder(access, "one")
    recorder.closed(record("cancelled"), None)
    recorder.closed(record("failed"), InflightError(ErrorKind.INVALID_REQUEST, "max_tokens"))
    recorder.closed(record("failed"), InflightError(ErrorKind.CONTENT_FILTER, "no"))
    recorder.closed(record("failed", dispatched_s=None), FAILED)
    recorder.closed(record(rollout=(None, 0)), None)
    await recorder.write()
    assert figures(lite) == {}


async def test_what_a_release_did_before_a_rollout_is_written_when_that_begins(
    access: StoreAccess, lite: Store
) -> None:
    recorder = ArmRecorder(access, "one")
    for number in range(10):
        outcome = "failed" if number < 2 else "finished"
        recorder.closed(record(outcome, version=1, rollout=(None, 0), model="m"), FAILED)
    recorder.closed(record(version=1, rollout=(None, 0), model="another"), None)
    await recorder.write()
    assert figures(lite) == {}
    recorder.closed(record(model="m"), None)
    recorder.closed(record(model="m", version=1), None)
    await recorder.write()
    found = figures(lite)
    assert {key: stats.errors for key, stats in found.items()} == {
        (PAST, 1, "one"): Proportion(2, 10),
        (0, 2, "one"): Proportion(0, 1),
        (0, 1, "one"): Proportion(0, 1),
    }


def test_the_past_of_a_release_is_of_its_last_requests() -> None:
    past = Past()
    for _ in range(1000):
        past.add("m", 1, True)
    for _ in range(20_000):
        past.add("m", 1, False)
    found = past.take("m")[1]
    assert 1000 <= found.total < 2000
    assert found.hits <= 2
    assert past.take("m") == {}


async def test_a_release_unknown_to_triton_is_not_its_callers_fault(access: StoreAccess, lite: Store) -> None:
    recorder = ArmRecorder(access, "one")
    recorder.closed(record("failed"), InflightError(ErrorKind.MODEL_NOT_FOUND, "unknown model"))
    recorder.closed(record("failed"), ValueError("a defect"))
    await recorder.write()
    assert figures(lite)[0, 2, "one"].errors == Proportion(2, 2)


async def test_each_router_writes_its_own_row_and_so_does_a_restarted_one(
    access: StoreAccess, lite: Store
) -> None:
    for _ in range(2):
        recorder = ArmRecorder(access)
        recorder.closed(record(), None)
        await recorder.write()
    assert [stats.errors for stats in figures(lite).values()] == [Proportion(0, 1)] * 2


async def test_arm_stats_wait_for_an_unreachable_store(access: StoreAccess, lite: Store) -> None:
    recorder = ArmRecorder(access, "one")
    begin = lite.begin

    def away() -> object:
        raise sql.exc.OperationalError("insert", {}, Exception("gone"))

    lite.begin = away  # type: ignore[method-assign, assignment]  # a store that cannot be reached
    for _ in range(100):
        recorder.closed(record(), None)
        await recorder.write()
    lite.begin = begin  # type: ignore[method-assign]  # it is back
    await recorder.write()
    assert figures(lite)[0, 2, "one"].errors == Proportion(0, 100)


async def test_unwritten_arm_stats_are_written_when_the_router_stops(
    access: StoreAccess, lite: Store
) -> None:
    recorder = ArmRecorder(access, "one")
    task = asyncio.ensure_future(recorder.run())
    await asyncio.sleep(0)
    recorder.closed(record(), None)
    task.cancel()
    await asyncio.wait([task])
    assert figures(lite)[0, 2, "one"].errors == Proportion(0, 1)


async def test_old_arms_are_forgotten_in_memory_and_their_rows_kept(access: StoreAccess, lite: Store) -> None:
    now_s = 1000.0
    recorder = ArmRecorder(access, "one", clock=lambda: now_s)
    recorder.closed(record(), None)
    await recorder.write()
    now_s += 4000
    await recorder.write()
    assert not recorder.arms
    assert len(figures(lite)) == 1


samples = st.builds(
    Sample,
    st.booleans(),
    st.one_of(st.none(), st.floats(0.001, 10)),
    st.one_of(st.none(), st.floats(0.001, 10)),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.one_of(st.none(), st.booleans()),
    st.floats(0, 1e4),
)


@given(st.lists(samples, max_size=40))
@settings(max_examples=examples(30), deadline=None)
def test_arm_stats_survive_a_row_to_a_millionth(every: list[Sample]) -> None:
    stats = ArmStats().with_all(every)
    text = stats_to_json(stats)
    read = stats_from_json(text)
    assert replace(read, timed=stats.timed) == stats
    assert stats_from_json(stats_to_json(read)) == read


def test_a_row_stays_small_however_long_a_step_lasts() -> None:
    every = (
        Sample(False, 0.1234567 + each % 7, 0.0123, 100 + each, at_s=1.8e9 + each) for each in range(2000)
    )
    assert len(stats_to_json(ArmStats().with_all(every))) < 10_000


def roll_out(router: RunningRouter, weight: float = 1.0) -> FakePipeline:
    """The second release of the model gets this share, by a rollout."""
    lineups = dict(router.parts.models.lineups)
    stable = lineups[MODEL].stable
    assert isinstance(stable, ServedModel)
    canary = replace(stable, pipeline=FakePipeline(), version=2)
    split = ModelSplit(MODEL, ((2, weight), (1, 1 - weight)), "salt", rollout_id=7)
    lineups[MODEL] = Lineup(MODEL, {1: stable, 2: canary}, split)
    router.parts.models.publish(lineups)
    assert isinstance(canary.pipeline, FakePipeline)
    return canary.pipeline


async def written(router: RunningRouter) -> dict[tuple[int, int], ArmStats]:
    recorder = router.arms
    await recorder.write()
    found = figures(router.parts.store.store)
    return {(step, version): stats for (step, version, _), stats in found.items()}


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_of_an_arm_are_measured_with_their_openings(
    router: RunningRouter, stream: bool
) -> None:
    pipeline = roll_out(router)
    pipeline.script = lambda call: words("I'm sorry,", " but I can't", " help.", *["x"] * 200)
    await router.chat(stream=stream)
    pipeline.script = lambda call: words("Sure", ", here")
    await router.chat(stream=stream)
    stats = (await written(router))[0, 2]
    assert (stats.errors, stats.refusals) == (Proportion(0, 2), Proportion(1, 2))
    assert stats.first_token.count == stats.length.count == 2


async def test_failures_count_against_an_arm_and_callers_faults_do_not(router: RunningRouter) -> None:
    pipeline = roll_out(router)
    pipeline.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "NaN in the logits")]
    assert (await router.chat()).status_code == 503
    pipeline.script = lambda call: [InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, "too long")]
    assert (await router.chat()).status_code == 400
    assert (await written(router))[0, 2].errors == Proportion(1, 1)


async def test_a_request_saved_after_its_release_lost_it_counts_as_failed(
    access: StoreAccess, lite: Store
) -> None:
    recorder = ArmRecorder(access, "one")
    recorder.closed(record(lost_attempts=1), None)
    recorder.closed(record("cancelled", lost_attempts=1), None)
    recorder.closed(record(), None)
    await recorder.write()
    stats = figures(lite)[0, 2, "one"]
    assert (stats.errors, stats.first_token.count) == (Proportion(2, 3), 1)


async def test_a_client_gets_an_answer_whose_saved_failure_counts_against_the_arm(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a generation that was lost with one replica and answered by another."""
    monkeypatch.setattr(FakeGeneration, "lost_attempts", 1, raising=False)
    roll_out(router).script = lambda call: words("Sure")
    assert (await router.chat()).status_code == 200
    assert (await written(router))[0, 2].errors == Proportion(1, 1)


async def test_without_a_rollout_no_arm_is_measured(router: RunningRouter) -> None:
    await router.chat()
    await router.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "hi"})
    assert await written(router) == {}


async def test_embeddings_are_measured_by_the_time_of_the_whole_answer(router: RunningRouter) -> None:
    lineups = dict(router.parts.models.lineups)
    split = replace(lineups[EMBEDDER].split, rollout_id=7)
    lineups[EMBEDDER] = replace(lineups[EMBEDDER], split=split)
    router.parts.models.publish(lineups)
    await router.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "hi"})
    stats = (await written(router))[0, 1]
    assert (stats.errors, stats.first_token.count) == (Proportion(0, 1), 1)
    assert stats.length.count == stats.between_tokens.count == stats.refusals.total == 0


async def test_requests_pinned_to_a_release_are_not_part_of_a_rollout(router: RunningRouter) -> None:
    roll_out(router)
    assert (await router.chat(model=f"{MODEL}@2")).status_code == 200
    assert await written(router) == {}
