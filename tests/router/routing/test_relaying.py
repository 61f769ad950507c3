"""Requests that somebody else built, and models of tensors, on several servers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import EmbeddingCall
from router.core.generation import Delta, read_to_the_end
from router.core.manifest import Kind, Manifest
from router.core.trace import Trace, TraceContext
from router.grpc.status import GrpcError, StatusCode
from router.routing.generation import FleetPipeline
from router.routing.inference import FleetEmbedder, FleetTensors
from router.routing.replicas import FleetSettings, ReplicaSet
from router.triton.messages import read_delta
from tests.fakes.fleet import DEAD_STUB, LOST, Script, fleet_of
from tests.router.routing.test_generation import HELLO, assert_nothing_is_left, in_turn, revive_soon, says
from tests.router.triton.test_embeddings import answer as embedding_response
from tests.waiting import soon, until

TENSORS = Manifest("resnet", 2, Kind.TENSORS, ("resnet.2",))
TEXTS = EmbeddingCall(["a text", "another"], 3, 20)
STUB_DEAD = GrpcError(StatusCode.UNAVAILABLE, "Stub process 'resnet.2_0_0' is not healthy")


def request() -> Any:
    message = service_pb2.ModelInferRequest(id="infer-1", model_version="9")
    message.raw_input_contents.append(b"some input")
    return message


def whole(*steps: Any) -> Script:
    """A response of ModelInfer is not wrapped."""
    return lambda request: [
        step if isinstance(step, GrpcError) or step is None else step.SerializeToString() for step in steps
    ]


def relay_of(replicas: ReplicaSet) -> Any:
    return FleetPipeline(replicas, 8192, FleetSettings(600.0)).relay(request())


async def texts(generation: Any) -> list[str]:
    return [read_delta(response).text async for response in generation]


async def test_relayed_responses_are_passed_on_unchanged() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO))
    assert await texts(relay_of(replicas)) == ["Hel", "lo", " world"]
    assert triton.requests[0].model_name == "smol.1"
    assert_nothing_is_left(replicas)


async def test_a_trace_records_each_attempt() -> None:
    script = in_turn([DEAD_STUB], HELLO)
    replicas, _ = fleet_of(script, script)
    trace = Trace("GET", {}, TraceContext(1, 2, True))
    relay = FleetPipeline(replicas, 8192, FleetSettings(600.0)).relay(request(), trace)
    assert await texts(relay) == ["Hel", "lo", " world"]
    assert [attempt.failure for attempt in trace.attempts] == ["stub_dead", ""]


@pytest.mark.parametrize("failure", [LOST, DEAD_STUB])
async def test_a_relayed_request_is_retried_before_its_first_response_and_never_after_it(
    failure: Any,
) -> None:
    replicas, _ = fleet_of(*[in_turn([failure], HELLO)] * 2)
    assert await texts(relay_of(replicas)) == ["Hel", "lo", " world"]
    assert replicas.retries == 1
    replicas, tritons = fleet_of(*[in_turn([HELLO[0], failure], HELLO)] * 2)
    generation = relay_of(replicas)
    with pytest.raises(InflightError):
        await texts(generation)
    await read_to_the_end(generation)
    assert sum(len(triton.requests) for triton in tritons) == 1
    assert_nothing_is_left(replicas)


async def test_a_relayed_request_stopped_before_it_starts_sends_nothing() -> None:
    replicas, (triton,) = fleet_of(says(*HELLO))
    generation = relay_of(replicas)
    generation.stop()
    assert await texts(generation) == []
    assert triton.requests == []


async def test_an_embedding_is_retried_on_another_replica_when_its_own_fails() -> None:
    for failure, lost in ((LOST, 0), (STUB_DEAD, 1)):
        replicas, tritons = fleet_of(*[in_turn_whole(failure)] * 2)
        answer = await FleetEmbedder(replicas).embed(TEXTS, "embd-1", "local")
        assert (answer.tokens, answer.lost_attempts) == ([4, 5], lost)
        assert [len(triton.requests) for triton in tritons] == [1, 1]
        assert replicas.retries == 1
        assert_nothing_is_left(replicas)


def in_turn_whole(*failures: GrpcError) -> Script:
    return in_turn(*[[failure] for failure in failures], [embedding_response().SerializeToString()])


async def test_an_interrupted_embedding_waits_for_its_replica() -> None:
    replicas, _ = fleet_of(in_turn([None], [embedding_response().SerializeToString()]))
    asking = asyncio.ensure_future(FleetEmbedder(replicas).embed(TEXTS, "embd-1", "local"))
    (replica,) = replicas.replicas
    await until(lambda: replica.outstanding_tokens > 0)
    assert replica.outstanding_tokens == 20
    revive_soon(replica)
    assert (await soon(asking)).tokens == [4, 5]
    assert_nothing_is_left(replicas)


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    replicas, _ = fleet_of(whole(None))
    asking = asyncio.ensure_future(FleetEmbedder(replicas).embed(TEXTS, "embd-1", "local"))
    await until(lambda: replicas.replicas[0].outstanding_tokens > 0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert_nothing_is_left(replicas)


async def test_with_no_replica_available_a_call_fails_at_once() -> None:
    replicas, _ = fleet_of(whole(LOST))
    for _ in range(2):
        with pytest.raises(InflightError) as caught:
            await soon(FleetEmbedder(replicas).embed(TEXTS, "embd-1", "local"))
        assert caught.value.kind is ErrorKind.ENGINE_FAILED
    assert not await FleetEmbedder(replicas).ready()


async def test_tensors_go_to_the_chosen_release_whatever_the_request_names() -> None:
    response = service_pb2.ModelInferResponse(id="infer-1")
    replicas, (triton,) = fleet_of(whole(response), manifest=TENSORS)
    tensors = FleetTensors(replicas)
    assert await tensors.infer(request(), 1.0) == response
    assert (triton.requests[0].model_name, triton.requests[0].model_version) == ("resnet.2", "")
    assert await tensors.ready()
    assert_nothing_is_left(replicas)


async def test_tensors_saved_from_a_dead_process_tell_that_it_failed_them() -> None:
    response = service_pb2.ModelInferResponse(id="infer-1")
    script = in_turn([STUB_DEAD], [response.SerializeToString()])
    replicas, _ = fleet_of(script, script, manifest=TENSORS)
    lost: list[int] = []
    assert await FleetTensors(replicas).infer(request(), 1.0, lost.append) == response
    assert lost == [1]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            GrpcError(StatusCode.INVALID_ARGUMENT, "unexpected shape in /models/resnet"),
            ErrorKind.INVALID_REQUEST,
            "the model does not accept these inputs",
        ),
        (
            GrpcError(StatusCode.INTERNAL, "it broke at 0x7f"),
            ErrorKind.INTERNAL,
            "the model cannot answer at the moment",
        ),
        (
            GrpcError(StatusCode.DEADLINE_EXCEEDED),
            ErrorKind.OVERLOADED,
            "the model did not answer in time",
        ),
        (
            GrpcError(StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
            ErrorKind.OVERLOADED,
            "the model cannot answer at the moment",
        ),
    ],
)
async def test_a_models_own_error_is_shown_without_internals_and_not_retried(
    error: GrpcError, kind: ErrorKind, message: str
) -> None:
    replicas, tritons = fleet_of(whole(error), whole(error), manifest=TENSORS)
    with pytest.raises(InflightError) as caught:
        await FleetTensors(replicas).infer(request(), 1.0)
    assert (caught.value.kind, caught.value.message) == (kind, message)
    assert sum(len(triton.requests) for triton in tritons) == 1
    assert all(replica.health.is_up for replica in replicas.replicas)
    assert_nothing_is_left(replicas)


async def test_a_decoupled_model_is_stopped_by_cancelling_its_call() -> None:
    replicas, (triton,) = fleet_of(says(HELLO[0], None), manifest=TENSORS)
    stream = FleetTensors(replicas).stream(request())
    assert read_delta(await stream.__anext__()).text == "Hel"
    stream.stop()
    assert await soon(texts(stream)) == []
    assert triton.stops == [], "no engine that could be asked"
    assert_nothing_is_left(replicas)


async def test_a_decoupled_models_responses_end_with_the_final_one() -> None:
    replicas, _ = fleet_of(says(Delta("a"), Delta("b", finish="end_id")), manifest=TENSORS)
    assert await texts(FleetTensors(replicas).stream(request())) == ["a", "b"]
    assert_nothing_is_left(replicas)


async def test_a_relayed_request_waits_for_a_replica_that_is_being_revived() -> None:
    replicas, _ = fleet_of(says(*HELLO))
    replicas.replicas[0].mark_down("a process died", time.monotonic(), reviving=True)
    reading = asyncio.ensure_future(texts(relay_of(replicas)))
    await asyncio.sleep(0.005)
    replicas.replicas[0].mark_up(time.monotonic())
    assert await soon(reading) == ["Hel", "lo", " world"]
