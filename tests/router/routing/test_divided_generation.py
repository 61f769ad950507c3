"""Prompts computed by one replica and answered by another: one answer, told and counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.engine_report import EngineReport
from python_backend.wire.errors import InflightError
from router.core.generation import Delta, GenerationCall
from router.core.trace import Trace, TraceContext
from router.routing.divided_generation import DividedGeneration
from router.routing.generation import FleetGeneration, FleetPipeline
from router.routing.replicas import FleetSettings, ReplicaSet
from tests.fakes.fleet import AWAY, DEAD_ENGINE, DEAD_STUB, LOST, FakeConnection, Step, fleet_of
from tests.tiers import examples
from tests.waiting import until

CALL = GenerationCall(request_id="chatcmpl-1", prompt="word " * 600, max_tokens=100, seed=5)
SHORT = msgspec.structs.replace(CALL, prompt="word")
PROMPT = [Delta("", 0, 5, "length", cached_tokens=3, context=b"there")]
HELLO = [Delta("Hel", 1, 5, cached_tokens=4), Delta("lo", 1, 5), Delta(" world", 1, 5, "end_id")]


def divided(pools: str, *scripts: Sequence[Step]) -> tuple[FleetPipeline, ReplicaSet, list[FakeConnection]]:
    """`pools` has a letter for each script: p, d or b."""
    names = {"p": "prefill", "d": "decode", "b": "both"}

    def in_turn(steps: Sequence[Step]) -> Callable[[Any], Sequence[Step]]:
        return lambda request: steps

    replicas, tritons = fleet_of(*map(in_turn, scripts))
    for replica, pool in zip(replicas.replicas, pools, strict=True):
        replica.is_loaded = True
        replica.report = EngineReport(8, 64, 8, 64, 100, 0, 16, 0, 0, False, pool=names[pool])
    pipeline = FleetPipeline(replicas, 8192, FleetSettings(600.0), divided=DividedGeneration)
    return pipeline, replicas, tritons


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


def parts(triton: FakeConnection) -> list[str]:
    """What it was asked for, by the request type."""
    return [request.parameters["request_type"].string_param or "whole" for request in triton.requests]


async def test_a_long_prompt_is_computed_by_one_replica_and_answered_by_another() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", PROMPT, HELLO)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    assert (parts(prefill), parts(decode)) == (["context_only"], ["generation_only"])
    (request,) = decode.requests
    assert (request.id, prefill.requests[0].id) == ("chatcmpl-1", "chatcmpl-1-p1")
    assert request.inputs[-1].name == "context_phase_params"
    assert request.raw_input_contents[-1] == b"there"
    assert (replicas.prompts_elsewhere, replicas.prompts_lost) == (1, 0)
    await assert_nothing_is_left(replicas, [prefill, decode])


async def test_cached_tokens_are_those_of_who_computed_the_prompt_and_no_token_is_counted_twice() -> None:
    pipeline, _, _ = divided("pd", PROMPT, HELLO)
    deltas = [delta async for delta in pipeline.generate(CALL)]
    assert [delta.cached_tokens for delta in deltas] == [3, 0, 0]
    assert sum(delta.completion_tokens for delta in deltas) == 3


async def test_what_was_computed_for_a_request_is_not_told_as_cached_where_the_same_replica_answers_it() -> (
    None
):
    pipeline, _, (prefill, decode) = divided("pd", [], [LOST])
    found = [Delta("", 0, 5, "length", context=b"there")]
    prefill.script = lambda request: found if request.id.endswith("-p1") else HELLO
    deltas = [delta async for delta in pipeline.generate(CALL)]
    assert (parts(prefill), parts(decode)) == (["context_only", "whole"], ["generation_only"])
    assert [delta.cached_tokens for delta in deltas] == [0, 0, 0]


async def test_a_short_prompt_is_computed_where_it_is_answered() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", PROMPT, HELLO)
    assert await text_of(pipeline.generate(SHORT)) == "Hello world"
    assert (parts(prefill), parts(decode)) == ([], ["whole"])
    assert replicas.prompts_elsewhere == 0


async def test_a_prompt_of_which_something_is_told_is_computed_where_it_is_answered() -> None:
    pipeline, _, (prefill, decode) = divided("pd", PROMPT, HELLO)
    await text_of(pipeline.generate(msgspec.structs.replace(CALL, echo=True, top_log_probs=1)))
    assert (parts(prefill), parts(decode)) == ([], ["whole"])


@pytest.mark.parametrize("pools", ["dd", "db", "bb"])
async def test_without_a_pool_for_prompts_one_replica_does_all(pools: str) -> None:
    pipeline, _, tritons = divided(pools, HELLO, HELLO)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    assert [part for triton in tritons for part in parts(triton)] == ["whole"]


async def test_when_the_decode_pool_is_gone_the_other_serves_whole_requests() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", HELLO, HELLO)
    replicas.replicas[1].mark_down("gone", 0.0, reviving=False)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    assert (parts(prefill), parts(decode)) == (["whole"], [])


async def test_when_the_prefill_pool_is_gone_the_other_computes_prompts() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", HELLO, HELLO)
    replicas.replicas[0].mark_down("gone", 0.0, reviving=False)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    assert (parts(prefill), parts(decode)) == ([], ["whole"])


@pytest.mark.parametrize(
    "failure",
    [LOST, DEAD_STUB, DEAD_ENGINE, AWAY, "overloaded: too many", Delta("", 0, 5, "length")],
)
async def test_a_prompt_that_cannot_be_had_is_computed_where_it_is_answered(failure: Step) -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", [failure], HELLO)
    assert await text_of(pipeline.generate(CALL)) == "Hello world"
    assert (parts(prefill), parts(decode)) == (["context_only"], ["whole"])
    assert (replicas.prompts_elsewhere, replicas.prompts_lost) == (0, 1)
    assert replicas.retries == replicas.replays == 0
    await assert_nothing_is_left(replicas, [prefill, decode])


async def test_an_answer_that_loses_its_replica_begins_again_with_the_prompt() -> None:
    pipeline, replicas, tritons = divided("pdd", PROMPT, HELLO, HELLO)
    first = pipeline.generate(CALL)
    await anext(first)
    begun = next(triton for triton in tritons[1:] if triton.requests)
    other = tritons[2] if begun is tritons[1] else tritons[1]
    replica = replicas.replicas[tritons.index(begun)]
    replica.mark_down("gone", 0.0, reviving=False)
    replica.cut_all("gone")
    assert await text_of(first) == "lo world"
    assert [request.id for request in tritons[0].requests] == ["chatcmpl-1-p1", "chatcmpl-1-p2"]
    assert parts(other) == ["generation_only"]
    assert replicas.replays == 1


async def test_a_prompt_that_killed_one_engine_is_not_computed_apart_again_and_refused_after_a_second() -> (
    None
):
    pipeline, replicas, (prefill, decode) = divided("pd", [DEAD_ENGINE], [DEAD_ENGINE])
    with pytest.raises(InflightError):
        await text_of(pipeline.generate(CALL))
    assert (parts(prefill), parts(decode)) == (["context_only"], ["whole"])
    with pytest.raises(InflightError, match="refused for a minute"):
        pipeline.generate(CALL)
    await assert_nothing_is_left(replicas, [prefill, decode])


async def test_a_stop_reaches_the_prompt_and_nothing_is_answered() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", [None], HELLO)
    generation = pipeline.generate(CALL)
    reading = asyncio.ensure_future(anext(generation))
    await until(lambda: replicas.replicas[0].outstanding_tokens > 0 and prefill.requests)
    generation.stop()
    assert (await reading).finish == "cancelled"
    assert prefill.stops == ["chatcmpl-1-p1"]
    assert parts(decode) == []
    assert replicas.prompts_lost == 0
    await assert_nothing_is_left(replicas, [prefill, decode])


async def test_a_stop_reaches_the_prompt_of_a_reader_that_has_left() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", [None], HELLO)
    generation = pipeline.generate(CALL)
    reading = asyncio.ensure_future(anext(generation))
    await until(lambda: prefill.requests)
    reading.cancel()
    await asyncio.wait([reading])
    generation.stop()
    await until(lambda: prefill.stops)
    assert prefill.stops == ["chatcmpl-1-p1"]
    assert [delta async for delta in generation] == []
    await assert_nothing_is_left(replicas, [prefill, decode])


async def test_a_replica_for_prompts_that_is_given_up_does_not_hold_up_the_answer() -> None:
    pipeline, replicas, (prefill, decode) = divided("pd", [None], HELLO)
    reading = asyncio.ensure_future(text_of(pipeline.generate(CALL)))
    await until(lambda: prefill.requests)
    replicas.replicas[0].cut_all("it says nothing")
    assert await reading == "Hello world"
    assert parts(decode) == ["whole"]
    await assert_nothing_is_left(replicas, [prefill, decode])


async def test_a_trace_tells_the_parts_apart() -> None:
    pipeline, replicas, _ = divided("pd", PROMPT, HELLO)
    trace = Trace("GET", {}, TraceContext(1, 2, True))
    await text_of(pipeline.generate(msgspec.structs.replace(CALL, trace=trace)))
    assert [(each.replica, each.part) for each in trace.attempts] == [("s0", "context_only"), ("s1", "")]
    assert replicas.replicas[0].begun == replicas.replicas[1].begun == 1


STEPS: st.SearchStrategy[Sequence[Step]] = st.sampled_from(
    [PROMPT, HELLO, [LOST], [DEAD_STUB], [DEAD_ENGINE], [AWAY], ["invalid_request: no"]]
)


@settings(deadline=None, max_examples=examples(50))
@given(pools=st.text("pdb", min_size=1, max_size=4), data=st.data())
async def test_every_request_ends_once_and_leaves_nothing_whatever_replicas_do(
    pools: str, data: st.DataObject
) -> None:
    scripts = [data.draw(STEPS) for _ in pools]
    pipeline, replicas, tritons = divided(pools, *scripts)
    pipeline.settings = FleetSettings(0.0)
    finishes = []
    try:
        async for delta in pipeline.generate(CALL):
            finishes.append(delta.finish)
    except InflightError:
        finishes.append("error")
    assert len([finish for finish in finishes if finish]) == 1
    await assert_nothing_is_left(replicas, tritons)
