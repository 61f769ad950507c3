"""Answers that outlive the replica they came from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.engine_report import EngineReport
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, GenerationCall, read_to_the_end
from router.core.images import Vision
from router.core.trace import Trace, TraceContext
from router.grpc.status import GrpcError, StatusCode
from router.routing.generation import FleetGeneration, FleetPipeline
from router.routing.replica_choice import Health, Phase
from router.routing.replicas import FleetSettings, Replica, ReplicaSet
from tests.fakes.fleet import AWAY, DEAD_ENGINE, DEAD_STUB, LOST, Script, Step, fleet_of
from tests.router.routing.answers import ANSWERS, Answer, chunks, joined
from tests.tiers import examples
from tests.waiting import soon, until

CALL = GenerationCall(request_id="chatcmpl-1", prompt="hi", max_tokens=100, seed=5)
UNKNOWN = "Request for unknown model: 'smol.1' is not found"
HELLO = [Delta("Hel", 1, 5), Delta("lo", 1, 5), Delta(" world", 1, 5, "end_id")]


def pipeline_of(replicas: ReplicaSet, wait_s: float = 600.0) -> FleetPipeline:
    return FleetPipeline(replicas, 8192, FleetSettings(wait_s))


def says(*steps: Step) -> Script:
    return lambda request: steps


def in_turn(*runs: Sequence[Step]) -> Script:
    """Each request gets the next run."""
    waiting = iter(runs)
    return lambda request: next(waiting)


async def collect(generation: FleetGeneration) -> list[Delta]:
    return [delta async for delta in generation]


def assert_nothing_is_left(replicas: ReplicaSet) -> None:
    for replica in replicas.replicas:
        assert (replica.outstanding_tokens, replica.open_count, replica.is_drained) == (0, 0, True)


def revive_soon(replica: Replica) -> None:
    """As the prober does it."""
    replica.mark_down("a process died", time.monotonic(), reviving=True)
    replica.cut_all("a process died")
    asyncio.get_running_loop().call_later(0.002, lambda: replica.mark_up(time.monotonic()))


async def test_one_healthy_replica_answers_a_generation() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO))
    assert await collect(pipeline_of(replicas).generate(CALL)) == HELLO
    (request,) = triton.requests
    assert (request.id, request.model_name) == ("chatcmpl-1", "smol.1")
    assert (replicas.retries, replicas.replays) == (0, 0)
    assert_nothing_is_left(replicas)


async def test_a_trace_records_each_attempt() -> None:
    script = in_turn([DEAD_STUB], HELLO)
    replicas, _ = fleet_of(script, script)
    trace = Trace("GET", {}, TraceContext(1, 2, True))
    await collect(pipeline_of(replicas).generate(msgspec.structs.replace(CALL, trace=trace)))
    first, second = trace.attempts
    assert {first.replica, second.replica} == {replica.name for replica in replicas.replicas}
    assert (first.failure, second.failure) == ("stub_dead", "")
    assert 0 < first.began_s <= second.began_s


@pytest.mark.parametrize(("failure", "lost"), [(DEAD_STUB, 1), (DEAD_ENGINE, 1), (AWAY, 0), (LOST, 0)])
async def test_an_attempt_lost_to_a_dead_process_is_told_though_another_replica_has_answered(
    failure: Step, lost: int
) -> None:
    script = in_turn([failure], HELLO)
    replicas, _ = fleet_of(script, script)
    generation = pipeline_of(replicas).generate(CALL)
    assert await collect(generation) == HELLO
    assert generation.lost_attempts == lost


async def test_tokens_in_flight_count_for_their_replica_and_fall_with_each_token() -> None:
    replicas, _ = fleet_of(says(*HELLO))
    (replica,) = replicas.replicas
    generation = pipeline_of(replicas).generate(CALL)
    assert replica.outstanding_tokens == 0
    counts = []
    async for _ in generation:
        counts.append(replica.outstanding_tokens)
    assert counts[:2] == [99, 98]
    assert replica.last_progress_s > 0
    assert_nothing_is_left(replicas)


@pytest.mark.parametrize(
    "failure", [LOST, DEAD_STUB, AWAY, "Request for unknown model: 'smol.1' is not found"]
)
async def test_a_request_whose_replica_fails_before_the_first_token_goes_to_another(failure: Step) -> None:
    replicas, tritons = fleet_of(says(failure), says(failure), says(*HELLO))
    assert await collect(pipeline_of(replicas).generate(CALL)) == HELLO
    asked = [request.id for triton in tritons for request in triton.requests]
    assert len(asked) == replicas.retries + 1
    assert len(set(asked)) == len(asked), "each attempt has an id of its own"
    assert replicas.replays == 0
    assert_nothing_is_left(replicas)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("engine_failed: step 5 broke", ErrorKind.ENGINE_FAILED),
        ("invalid_request: no", ErrorKind.INVALID_REQUEST),
        ("invalid_request: Stub process 'x' is not healthy", ErrorKind.INVALID_REQUEST),
        ("in ensemble 'smol.1', Exceeds maximum queue size", ErrorKind.OVERLOADED),
        (GrpcError(StatusCode.UNAVAILABLE, "Request timeout expired"), ErrorKind.OVERLOADED),
    ],
)
async def test_an_error_that_is_not_the_replicas_fault_is_not_retried(error: Step, kind: ErrorKind) -> None:
    replicas, tritons = fleet_of(says(error), says(error))
    generation = pipeline_of(replicas).generate(CALL)
    with pytest.raises(InflightError) as caught:
        await collect(generation)
    assert caught.value.kind is kind
    assert sum(len(triton.requests) for triton in tritons) == 1
    await read_to_the_end(generation)
    assert all(replica.health.is_up for replica in replicas.replicas)
    assert_nothing_is_left(replicas)


async def test_an_answer_goes_on_elsewhere_when_its_engine_dies_and_what_two_died_of_is_refused() -> None:
    dying = in_turn([*HELLO[:1], DEAD_ENGINE], HELLO)
    replicas, _ = fleet_of(dying, dying)
    assert await collect(pipeline_of(replicas).generate(CALL)) == HELLO
    assert replicas.replays == 1
    assert_nothing_is_left(replicas)

    replicas, tritons = fleet_of(*[says(*HELLO[:1], DEAD_ENGINE)] * 3)
    pipeline = pipeline_of(replicas)
    generation = pipeline.generate(CALL)
    with pytest.raises(InflightError, match="cannot answer"):
        await collect(generation)
    await read_to_the_end(generation)
    assert sum(len(triton.requests) for triton in tritons) == 2, "a third engine lives"
    with pytest.raises(InflightError, match="engine processes crashed") as caught:
        pipeline.generate(CALL)
    assert caught.value.kind is ErrorKind.INTERNAL
    pipeline.generate(msgspec.structs.replace(CALL, prompt="something else"))
    assert_nothing_is_left(replicas)


async def test_a_request_waits_for_its_lost_server_as_long_as_it_may_and_ends_once() -> None:
    replicas, _ = fleet_of(says(*HELLO[:1], LOST))
    generation = pipeline_of(replicas, wait_s=0.05).generate(CALL)
    assert await generation.__anext__() == HELLO[0]
    with pytest.raises(InflightError, match="cannot answer") as caught:
        await generation.__anext__()
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    assert await collect(generation) == []
    assert_nothing_is_left(replicas)


async def test_nobody_waits_for_a_server_beyond_the_moment_by_which_the_first_token_is_wanted() -> None:
    replicas, _ = fleet_of(says(*HELLO))
    (replica,) = replicas.replicas
    replica.is_loaded = True
    replica.mark_down("Triton is unreachable", time.monotonic(), reviving=False, server_is_gone=True)
    hurried = msgspec.structs.replace(CALL, deadline_s=time.monotonic() + 0.05)
    patient = asyncio.ensure_future(collect(pipeline_of(replicas, wait_s=600).generate(CALL)))
    with pytest.raises(InflightError, match="cannot answer"):
        await collect(pipeline_of(replicas, wait_s=600).generate(hurried))
    assert not patient.done()
    replica.mark_up(time.monotonic())
    assert await patient == HELLO


async def test_new_requests_wait_for_a_replica_that_is_being_revived() -> None:
    replicas, _ = fleet_of(says(*HELLO))
    revive_soon(replicas.replicas[0])
    assert await collect(pipeline_of(replicas).generate(CALL)) == HELLO


async def test_waiting_ends_by_timeout_or_when_no_replica_is_being_revived() -> None:
    replicas, _ = fleet_of(says(*HELLO))
    (replica,) = replicas.replicas
    replica.mark_down("a process died", time.monotonic(), reviving=True)
    with pytest.raises(InflightError, match="cannot answer"):
        await collect(pipeline_of(replicas, wait_s=0.01).generate(CALL))
    waiting = asyncio.ensure_future(collect(pipeline_of(replicas, wait_s=600.0).generate(CALL)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    replica.mark_down("it cannot be revived", time.monotonic(), reviving=False)
    with pytest.raises(InflightError, match="cannot answer"):
        await soon(waiting)


async def test_a_stop_while_a_generation_waits_ends_it_exactly_once() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO))
    replicas.replicas[0].mark_down("a process died", time.monotonic(), reviving=True)
    generation = pipeline_of(replicas, wait_s=600.0).generate(CALL)
    reading = asyncio.ensure_future(collect(generation))
    await asyncio.sleep(0.01)
    generation.stop()
    generation.stop()
    assert await soon(reading) == [Delta("", finish="cancelled")]
    assert await collect(generation) == []
    assert triton.requests == []
    assert_nothing_is_left(replicas)


async def test_a_stop_before_the_start_never_reaches_triton() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO))
    generation = pipeline_of(replicas).generate(CALL)
    generation.stop()
    assert await collect(generation) == [Delta("", finish="cancelled")]
    assert triton.requests == []


async def test_a_reader_that_leaves_while_a_generation_waits_leaves_nothing_behind() -> None:
    replicas, _ = fleet_of(says(*HELLO))
    replicas.replicas[0].mark_down("a process died", time.monotonic(), reviving=True)
    generation = pipeline_of(replicas, wait_s=600.0).generate(CALL)
    reading = asyncio.ensure_future(collect(generation))
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await collect(generation) == []
    assert_nothing_is_left(replicas)


async def test_a_reader_that_leaves_in_mid_answer_counts_until_the_engine_has_stopped() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO[:1], None))
    (replica,) = replicas.replicas
    generation = pipeline_of(replicas).generate(CALL)
    await generation.__anext__()
    reading = asyncio.ensure_future(generation.__anext__())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert replica.open_count == 1
    generation.stop()
    await triton.close()
    assert await collect(generation) == []
    assert_nothing_is_left(replicas)


async def test_a_generation_stopped_when_its_process_dies_ends_as_stopped() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO[:1], None))
    triton.is_deaf = True
    generation = pipeline_of(replicas).generate(CALL)
    await generation.__anext__()
    generation.stop()
    replicas.replicas[0].mark_down("a process died", time.monotonic(), reviving=True)
    replicas.replicas[0].cut_all("a process died")
    assert await soon(collect(generation)) == [Delta("", finish="cancelled")]
    assert_nothing_is_left(replicas)
    await triton.close()


async def test_an_interrupted_answer_is_generated_again_with_the_same_seed_on_another_replica() -> None:
    replicas, tritons = fleet_of(says(*HELLO[:2], None), says(*HELLO[:2], None))
    generation = pipeline_of(replicas).generate(CALL)
    got = [await generation.__anext__(), await generation.__anext__()]
    first = next(replica for replica in replicas.replicas if replica.open_count)
    for triton in tritons:
        triton.script = says(Delta("Hello wo", 2, 5), Delta("rld", 1, 5, "length"))
    first.mark_down("a process died", time.monotonic(), reviving=True)
    first.cut_all("a process died")
    got += await soon(collect(generation))
    assert joined(got) == Answer("Hello world", 3, ())
    assert got[-1].finish == "length"
    assert replicas.replays == 1
    requests = [request for triton in tritons for request in triton.requests]
    seeds = {request.raw_input_contents[10] for request in requests}
    assert len(requests) == 2
    assert len(seeds) == 1
    assert_nothing_is_left(replicas)


async def test_an_answer_interrupted_on_a_replica_that_is_up_continues_there() -> None:
    """Somebody else has revived it, and it never looked dead from here."""
    replicas, _ = fleet_of(in_turn([*HELLO[:2], None], HELLO))
    generation = pipeline_of(replicas).generate(CALL)
    got = [await generation.__anext__(), await generation.__anext__()]
    replicas.replicas[0].cut_all("the model was loaded again")
    got += await soon(collect(generation))
    assert got == HELLO
    assert_nothing_is_left(replicas)


async def test_a_replay_that_generates_different_text_fails() -> None:
    replicas, tritons = fleet_of(in_turn([*HELLO[:2], None], [Delta("Hell", 1), Delta("a!", 1), None]))
    generation = pipeline_of(replicas).generate(CALL)
    got = [await generation.__anext__(), await generation.__anext__()]
    revive_soon(replicas.replicas[0])
    with pytest.raises(InflightError) as caught:
        await soon(collect(generation))
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    assert "".join(delta.text for delta in got) == "Hello"
    assert await soon(collect(generation)) == []
    assert tritons[0].stops == ["chatcmpl-1", "chatcmpl-1-r2"], "the engine does not go on for nobody"
    assert_nothing_is_left(replicas)
    await tritons[0].close()


async def test_attempts_are_bounded() -> None:
    replicas, tritons = fleet_of(*[says(LOST)] * 9)
    with pytest.raises(InflightError):
        await collect(pipeline_of(replicas).generate(CALL))
    assert sum(len(triton.requests) for triton in tritons) == 4


async def test_servers_that_cannot_be_reached_count_for_no_attempt_and_no_retry() -> None:
    unreached = GrpcError(StatusCode.UNAVAILABLE, "no connection", lost=True, sent=False)
    replicas, _ = fleet_of(*[in_turn(*[[unreached]] * 8, HELLO)] * 9)
    assert await collect(pipeline_of(replicas).generate(CALL)) == HELLO
    assert replicas.budget.left == replicas.budget.reserve
    assert_nothing_is_left(replicas)


async def test_when_no_server_can_be_reached_a_request_waits_for_one_and_ends() -> None:
    unreached = GrpcError(StatusCode.UNAVAILABLE, "no connection", lost=True, sent=False)
    replicas, _ = fleet_of(*[says(unreached)] * 9)
    with pytest.raises(InflightError, match="cannot answer"):
        await collect(pipeline_of(replicas, wait_s=0.05).generate(CALL))
    assert_nothing_is_left(replicas)


async def test_a_prompt_goes_to_the_replica_that_served_its_prefix() -> None:
    replicas, tritons = fleet_of(says(*HELLO), says(*HELLO), says(*HELLO))
    for _ in range(5):
        await collect(pipeline_of(replicas).generate(CALL))
    assert sorted(len(triton.requests) for triton in tritons) == [0, 0, 5]


async def test_a_pipeline_is_ready_when_a_replica_is() -> None:
    replicas, (first, second) = fleet_of(says(), says())
    pipeline = pipeline_of(replicas)
    first.is_ready = False
    assert await pipeline.ready()
    replicas.replicas[1].mark_down("gone", 0.0, reviving=False)
    assert not await pipeline.ready()
    assert second.is_ready


# Whatever happens


@settings(deadline=None, max_examples=examples(60))
@given(ANSWERS, st.data())
def test_the_client_gets_exactly_the_answer_whatever_fails_and_wherever_runs_are_cut(
    answer: Answer, data: st.DataObject
) -> None:
    """One replica that is brought back, or three of which some fail: every token once, and one finish."""
    breaks: list[Step] = data.draw(st.lists(st.sampled_from([LOST, DEAD_STUB, None]), max_size=2))
    is_alone = data.draw(st.booleans())
    runs: list[list[Step]] = []
    for how in breaks:
        deltas = data.draw(chunks(answer))
        kept: list[Step] = list(deltas[: data.draw(st.integers(0, len(deltas) - 1))])
        runs.append([*kept, None if is_alone else how])
    runs.append(list(data.draw(chunks(answer))))
    script = in_turn(*runs)

    async def play() -> None:
        replicas, tritons = fleet_of(script) if is_alone else fleet_of(script, script, script)
        generation = pipeline_of(replicas).generate(CALL)
        got = await _read_while_replicas_fall_silent(generation, replicas, is_alone)
        assert joined(got) == answer
        assert [delta.finish for delta in got if delta.finish] == ["end_id"]
        assert got[-1].finish == "end_id"
        assert await collect(generation) == []
        assert replicas.retries + replicas.replays == len(breaks)
        assert_nothing_is_left(replicas)
        assert sum(len(triton.requests) for triton in set(tritons)) == len(runs)

    asyncio.run(play())


async def _read_while_replicas_fall_silent(
    generation: FleetGeneration, replicas: ReplicaSet, is_alone: bool
) -> list[Delta]:
    got: list[Delta] = []
    reading = asyncio.ensure_future(_read_into(generation, got))
    quiet = 0
    while not reading.done():
        before = (len(got), sum(replica.begun for replica in replicas.replicas))
        await asyncio.sleep(0)
        after = (len(got), sum(replica.begun for replica in replicas.replicas))
        quiet = quiet + 1 if before == after else 0
        busy = [replica for replica in replicas.replicas if replica.open_count]
        if quiet > 30 and busy:  # longer than any run needs for all its deltas
            quiet = 0
            busy[0].mark_down("silent", time.monotonic(), reviving=is_alone)
            busy[0].cut_all("silent")
            if is_alone:
                await asyncio.sleep(0)
                busy[0].mark_up(time.monotonic())
    await reading
    return got


async def _read_into(generation: FleetGeneration, got: list[Delta]) -> None:
    async for delta in generation:
        got.append(delta)


@settings(deadline=None)
@given(ANSWERS, st.data())
def test_a_stop_or_a_cut_at_any_moment_ends_a_generation_once_and_leaves_nothing(
    answer: Answer, data: st.DataObject
) -> None:
    deltas = data.draw(chunks(answer))
    runs: list[Sequence[Step]] = [[*deltas[: data.draw(st.integers(0, len(deltas)))], None] for _ in range(4)]
    acts = data.draw(
        st.lists(st.tuples(st.sampled_from(["stop", "cut", "up", "leave"]), st.integers(0, 12)), max_size=6)
    )

    async def play() -> None:
        replicas, (triton,) = fleet_of(in_turn(*runs))
        (replica,) = replicas.replicas
        generation = pipeline_of(replicas).generate(CALL)
        got: list[Delta] = []
        reading = asyncio.ensure_future(_read_into(generation, got))
        for act, turns in acts:
            for _ in range(turns):
                await asyncio.sleep(0)
            if act == "stop":
                generation.stop()
            elif act == "leave":
                reading.cancel()
            elif act == "up":
                replica.mark_up(time.monotonic())
            else:
                replica.mark_down("silent", time.monotonic(), reviving=True)
                replica.cut_all("silent")
        generation.stop()
        await soon(asyncio.wait([reading]))
        await triton.close()
        got += await collect(generation)  # of one that was left before it began
        finishes = [delta.finish for delta in got if delta.finish]
        assert len(finishes) <= 1
        assert finishes or reading.cancelled() or reading.exception() is not None
        if not reading.cancelled() and (error := reading.exception()) is not None:
            assert isinstance(error, InflightError)
            assert not finishes
        assert await collect(generation) == []
        await until(lambda: replica.is_drained)
        assert_nothing_is_left(replicas)

    asyncio.run(play())


async def test_one_answer_after_a_failure_marks_a_replica_up_again() -> None:
    """By the clock that requests go by, where a trial begins a moment after it was let in."""
    replicas, _ = fleet_of(in_turn(HELLO))
    replica = replicas.replicas[0]
    replica._turn(Health(Phase.DOWN, time.monotonic() - 2, retry_s=time.monotonic() - 1))
    assert not replica.health.is_up
    await collect(pipeline_of(replicas).generate(CALL))
    assert replica.health.is_up


async def test_a_pipeline_sees_what_one_of_its_engines_says() -> None:
    replicas, _ = fleet_of(says(*HELLO), says(*HELLO))
    pipeline = pipeline_of(replicas)
    assert pipeline.vision is None
    blind = EngineReport(1, 1, 1, 1, 1, 0, 1, 0, 0, False)
    replicas.replicas[0].report = blind
    assert pipeline.vision is None
    replicas.replicas[1].report = replace(blind, max_images=4, image_tokens=576)
    assert pipeline.vision == Vision(4, 576)
