"""A late first token is asked for once more elsewhere; the reader gets one answer, and nothing is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from router.core.generation import Delta, GenerationCall
from router.routing import hedging
from router.routing.generation import FleetGeneration, FleetPipeline
from router.routing.hedged_generation import HedgedGeneration
from router.routing.hedging import Hedges
from router.routing.replicas import FleetSettings, ReplicaSet
from tests.fakes.fleet import DEAD_ENGINE, DEAD_STUB, LOST, FakeConnection, Script, Step, fleet_of
from tests.tiers import examples
from tests.waiting import soon, until

CALL = GenerationCall(request_id="chatcmpl-1", prompt="hi", max_tokens=100, seed=5)
HELLO = [Delta("Hel", 1, 5), Delta("lo", 1, 5), Delta(" world", 1, 5, "end_id")]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond is late."""
    monkeypatch.setattr(hedging, "_LEAST_LATE_S", 0.001)


def hedged(
    *scripts: Sequence[Step], percent: float = 10.0, usual_s: float = 0.0001
) -> tuple[FleetPipeline, ReplicaSet, list[FakeConnection]]:
    def says(steps: Sequence[Step]) -> Script:
        return lambda request: steps

    replicas, tritons = fleet_of(*map(says, scripts))
    for replica in replicas.replicas:
        replica.is_loaded = True
    hedges = replicas.hedges = Hedges(percent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hedging, "_LEAST_LATE_S", 0.001)
        for _ in range(20):
            hedges.heard(1, usual_s)
    generation = partial(HedgedGeneration, hedges=hedges)
    return FleetPipeline(replicas, 8192, FleetSettings(600.0), generation=generation), replicas, tritons


async def text_of(generation: FleetGeneration) -> str:
    deltas = [delta async for delta in generation]
    assert [delta.finish for delta in deltas if delta.finish] == ["end_id"]
    return "".join(delta.text for delta in deltas)


async def assert_nothing_is_left(replicas: ReplicaSet, tritons: Sequence[FakeConnection]) -> None:
    for triton in tritons:
        await triton.close()
    await until(lambda: all(replica.is_drained for replica in replicas.replicas))
    for replica in replicas.replicas:
        assert (replica.outstanding_tokens, replica.open_count) == (0, 0)


def asked(tritons: Sequence[FakeConnection]) -> list[str]:
    return sorted(request.id for triton in tritons for request in triton.requests)


@pytest.mark.parametrize("first_is_silent", [0, 1])
async def test_a_second_replica_answers_where_the_first_is_late_and_the_first_is_stopped(
    first_is_silent: int,
) -> None:
    scripts: list[Sequence[Step]] = [HELLO, HELLO]
    scripts[first_is_silent] = [None]
    pipeline, replicas, tritons = hedged(*scripts)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    was_asked_twice = bool(tritons[first_is_silent].requests)
    if was_asked_twice:
        assert asked(tritons) == ["chatcmpl-1", "chatcmpl-1-h"]
        (silent,) = tritons[first_is_silent].requests
        assert tritons[first_is_silent].stops == [silent.id]
    assert replicas.hedges is not None
    assert replicas.hedges.begun == was_asked_twice
    await assert_nothing_is_left(replicas, tritons)


async def test_whoever_answers_in_time_is_asked_alone() -> None:
    pipeline, replicas, tritons = hedged(HELLO, HELLO, usual_s=30.0)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    assert asked(tritons) == ["chatcmpl-1"]
    await assert_nothing_is_left(replicas, tritons)


@pytest.mark.parametrize("failure", [LOST, DEAD_STUB, DEAD_ENGINE])
async def test_a_second_replica_that_fails_is_noted_and_the_first_goes_on(failure: Step) -> None:
    """Both fail, then both are silent: the reader waits for the first, whose failure is its own."""
    pipeline, replicas, tritons = hedged([None], [failure])
    generation = pipeline.generate(CALL)
    reading = asyncio.ensure_future(text_of(generation))
    await until(lambda: not all(replica.health.is_up for replica in replicas.replicas))
    generation.stop()
    with pytest.raises((AssertionError, InflightError)):  # it ends as stopped, not as whole
        await reading
    assert any(not replica.health.is_up for replica in replicas.replicas)
    await assert_nothing_is_left(replicas, tritons)


async def test_nobody_is_asked_twice_beyond_the_budget() -> None:
    pipeline, replicas, tritons = hedged([None], [None], percent=0.1)
    calls = [msgspec.structs.replace(CALL, request_id=f"chatcmpl-{number}") for number in range(5)]
    generations = [pipeline.generate(call) for call in calls]
    readings = [asyncio.ensure_future(text_of(each)) for each in generations]
    await until(lambda: len(asked(tritons)) >= 5 + 1)
    await asyncio.sleep(0.05)
    assert len(asked(tritons)) == 5 + 1
    for each in generations:
        each.stop()
    await asyncio.wait(readings)
    assert all(isinstance(each.exception(), AssertionError) for each in readings)  # stopped, not whole
    await assert_nothing_is_left(replicas, tritons)


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_a_stop_a_cut_or_a_leave_at_any_moment_ends_it_once_and_leaves_nothing(data: st.DataObject) -> None:
    steps: list[Sequence[Step]] = [HELLO, [None], [*HELLO[:1], None], [*HELLO[:2], LOST], [DEAD_STUB]]
    scripts = [data.draw(st.sampled_from(steps)) for _ in range(2)]
    acts = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["stop", "cut0", "cut1", "leave", "late"]), st.integers(0, 8)),
            max_size=5,
        )
    )

    async def play() -> None:
        pipeline, replicas, tritons = hedged(*scripts)
        generation = pipeline.generate(CALL)
        got: list[Delta] = []

        async def read() -> None:
            async for delta in generation:
                got.append(delta)

        reading = asyncio.ensure_future(read())
        for act, turns in acts:
            for _ in range(turns):
                await asyncio.sleep(0)
            if act == "stop":
                generation.stop()
            elif act == "leave":
                reading.cancel()
            elif act == "late":
                await asyncio.sleep(0.003)
            else:
                replica = replicas.replicas[int(act[-1])]
                replica.mark_down("silent", time.monotonic(), reviving=False)
                replica.cut_all("silent")
        generation.stop()
        await soon(asyncio.wait([reading]))
        finishes = [delta.finish for delta in got if delta.finish]
        assert len(finishes) <= 1
        text = "".join(delta.text for delta in got)
        assert "Hello world".startswith(text)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            assert isinstance(error, InflightError)
        await assert_nothing_is_left(replicas, tritons)

    asyncio.run(play())
