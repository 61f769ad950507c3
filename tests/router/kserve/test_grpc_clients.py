"""Triton's own gRPC clients, sync and aio, against the router."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from router.core.tenant import Limits, Scope
from router.kserve import server
from router.kserve.calls import Stream
from tests.fakes.triton_server import Reply, story
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, prompt_inputs, received
from tests.router.kserve.running import RunningKserve
from tests.router.running import EMBEDDER, MODEL
from tests.waiting import soon


@pytest.fixture
async def client(kserve: RunningKserve) -> AsyncIterator[triton_aio.InferenceServerClient]:
    async with triton_aio.InferenceServerClient(kserve.grpc_url) as opened:
        yield opened


async def stream(client: Any, requests: list[dict[str, Any]], **options: Any) -> list[Any]:
    """Every result of one stream: responses, or errors as what they are."""

    async def each() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    found = client.stream_infer(each(), **options)
    return [error or result async for result, error in found]


def texts(results: list[Any]) -> list[str]:
    pieces = [result.as_numpy("text_output") for result in results]
    return [b"".join(piece.flatten()).decode() for piece in pieces if piece is not None]


def request(model: str = MODEL, **more: Any) -> dict[str, Any]:
    inputs = prompt_inputs(grpc_input, stream=("BOOL", [[True]]))
    return {"model_name": model, "inputs": inputs, **more}


async def test_server_and_models_describe_themselves(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(MODEL)
    assert not await client.is_model_ready("nope")
    assert not await client.is_model_ready(MODEL, "7")
    assert (await client.get_server_metadata()).name == "inflight"
    metadata = await client.get_model_metadata("ensemble", "1")
    assert metadata.name == "ensemble"
    assert {each.name: each.datatype for each in metadata.inputs}["text_input"] == "BYTES"
    config = (await client.get_model_config(MODEL)).config
    assert config.model_transaction_policy.decoupled
    assert [each.dims for each in config.input if each.name == "max_tokens"] == [[1]]
    index = await client.get_model_repository_index()
    assert [(each.name, each.state) for each in index.models] == [(MODEL, "READY"), (EMBEDDER, "READY")]


async def test_a_decoupled_model_answers_plain_infer_with_everything_in_one_response(
    kserve: RunningKserve, client: Any
) -> None:
    kserve.triton.script = lambda request: story("Hello world")
    result = await client.infer(MODEL, prompt_inputs(grpc_input), request_id="mine")
    assert result.as_numpy("text_output").tolist() == [b"Hello world"]
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == (MODEL, "1", "mine")
    assert received(kserve.triton)["stream"] == [False]


async def test_no_id_header_or_parameter_of_the_client_reaches_triton(
    kserve: RunningKserve, client: Any
) -> None:
    await client.infer(MODEL, prompt_inputs(grpc_input), request_id="mine", headers={"x-secret": "1"})
    (sent,) = kserve.triton.requests
    assert sent.model_name == "ensemble"
    assert sent.id.startswith("infer-")
    assert set(sent.parameters) == {"triton_enable_empty_final_response", "tenant", "inflight_router"}
    assert sent.parameters["tenant"].string_param == "local"
    assert "x-secret" not in kserve.triton.metadata[0]


async def test_token_counts_are_shown_only_to_clients_that_ask_for_them(
    kserve: RunningKserve, client: Any
) -> None:
    plain = await client.infer(MODEL, prompt_inputs(grpc_input))
    assert [output.name for output in plain.get_response().outputs] == ["text_output", "finish_reason"]
    flagged = prompt_inputs(grpc_input, return_num_output_tokens=("BOOL", [[True]]))
    counted = await client.infer(MODEL, flagged)
    assert "num_output_tokens" in [output.name for output in counted.get_response().outputs]
    wanted = [triton.InferRequestedOutput("num_input_tokens")]
    by_name = await client.infer(MODEL, prompt_inputs(grpc_input), outputs=wanted)
    assert [output.name for output in by_name.get_response().outputs] == ["num_input_tokens"]


async def test_performance_figures_come_with_every_response_to_clients_that_ask_for_them(
    kserve: RunningKserve, client: Any
) -> None:
    """NVIDIA's own scripts read them from each."""
    inputs = prompt_inputs(grpc_input, stream=("BOOL", [[True]]), return_perf_metrics=("BOOL", [[True]]))
    results = await stream(client, [{"model_name": MODEL, "inputs": inputs}])
    assert texts(results) == ["Hello", " world"]
    for result in results:
        assert result.as_numpy("kv_cache_alloc_new_blocks").tolist() == [[0]]
        assert result.as_numpy("acceptance_rate").dtype == "float32"
    plain = await stream(client, [request()])
    assert plain[0].as_numpy("arrival_time_ns") is None


async def raw_stream(kserve: RunningKserve, requests: list[Any]) -> list[Any]:
    """As protobufs: the aio client has no way to ask for an empty last response."""
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return [message.infer_response async for message in stub.ModelStreamInfer(iter(requests))]


async def test_a_stream_carries_several_requests_and_marks_the_end_of_each(kserve: RunningKserve) -> None:
    kserve.triton.script = lambda request: [Reply("a"), Reply("b"), Reply(final=True, bare=True)]
    responses = await raw_stream(kserve, [raw_request(str(number), wants_final=True) for number in range(3)])
    for number in range(3):
        mine = [each for each in responses if each.id == str(number)]
        assert b"".join(each.raw_output_contents[0][4:] for each in mine[:-1]) == b"ab"
        assert [each.parameters["triton_final_response"].bool_param for each in mine] == [False, False, True]
        assert not mine[-1].outputs


async def test_an_empty_final_response_is_sent_only_to_clients_that_ask_for_it(kserve: RunningKserve) -> None:
    kserve.triton.script = lambda request: [Reply("a"), Reply("b"), Reply(final=True, bare=True)]
    assert len(await raw_stream(kserve, [raw_request()])) == 2
    assert len(await raw_stream(kserve, [raw_request(wants_final=True)])) == 3


async def test_an_error_in_a_stream_names_its_kind_and_leaves_the_others_alone(
    kserve: RunningKserve, client: Any
) -> None:
    bad = {**request(), "inputs": [grpc_input("text_input", "BYTES", [[b"hi"]])], "request_id": "bad"}
    results = await stream(client, [bad, request()])
    errors = [each for each in results if isinstance(each, Exception)]
    assert [str(each) for each in errors] == ["invalid_request: input 'max_tokens' is missing"]
    assert texts([each for each in results if each not in errors]) == ["Hello", " world"]


async def test_rows_come_back_stacked_in_one_tensor(kserve: RunningKserve, client: Any) -> None:
    kserve.triton.script = lambda request: [
        Reply("second", row=1, finish="end_id"),
        Reply("first", row=0, finish="length", final=True),
    ]
    inputs = [
        grpc_input("text_input", "BYTES", [[b"1"], [b"2"]]),
        grpc_input("max_tokens", "INT32", [[4], [5]]),
        grpc_input("stop_words", "BYTES", [[b"x", b"y"], [b"z", b""]]),
    ]
    wanted = [triton.InferRequestedOutput("text_output")]
    result = await client.infer(MODEL, inputs, outputs=wanted)
    assert result.as_numpy("text_output").tolist() == [b"first", b"second"]
    sent = received(kserve.triton)
    assert sent["max_tokens"] == [4, 5]
    assert sent["stop_words"] == [b"x", b"y", b"", b"", b"z", b"", b"", b""]
    assert sent["return_num_input_tokens"] == [True, True]


async def test_embeddings_have_their_own_contract(kserve: RunningKserve, client: Any) -> None:
    result = await client.infer("embeddings", [grpc_input("TEXT", "BYTES", [[b"a"], [b"b"]])])
    assert result.as_numpy("EMBEDDING").shape == (2, 8)
    assert result.as_numpy("TOKENS").tolist() == [[3], [3]]
    with pytest.raises(InferenceServerException, match="TEXT"):
        await client.infer("embeddings", [grpc_input("TEXT", "BYTES", [[b""]])])


@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "postprocessing"])
async def test_steps_inside_a_pipeline_cannot_be_called(client: Any, model: str) -> None:
    with pytest.raises(InferenceServerException, match="a step of other models") as refused:
        await client.infer(model, prompt_inputs(grpc_input))
    assert refused.value.status() == "StatusCode.NOT_FOUND"


async def test_operator_calls_are_refused_with_the_reason(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="operator") as refused:
        await client.load_model(MODEL)
    assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
    with pytest.raises(InferenceServerException, match="shared memory is not supported"):
        await client.register_system_shared_memory("a", "/a", 10)


async def test_keys_are_required_once_some_exist(kserve: RunningKserve, client: Any) -> None:
    tenant = await kserve.router.new_tenant()
    key = await kserve.router.new_key(tenant)
    for headers in ({}, {"authorization": "Bearer ik-wrong"}, {"authorization": key}):
        with pytest.raises(InferenceServerException) as refused:
            await client.infer(MODEL, prompt_inputs(grpc_input), headers=headers)
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
    headers = {"authorization": f"Bearer {key}"}
    await client.infer(MODEL, prompt_inputs(grpc_input), headers=headers)
    assert texts(await stream(client, [request()], headers=headers)) == ["Hello", " world"]
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await stream(client, [request()])
    assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert await client.is_server_ready()
    (usage,) = await kserve.router.usage(tenant)
    assert (usage.group, usage.requests) == ((MODEL,), 2)
    assert (usage.prompt_tokens, usage.completion_tokens) == (10, 2)
    statistics = await client.get_inference_statistics(MODEL, headers=headers)
    assert statistics.model_stats[0].inference_count == 2


async def test_a_key_is_for_its_models_and_scopes(kserve: RunningKserve, client: Any) -> None:
    tenant = await kserve.router.new_tenant()
    key = await kserve.router.new_key(tenant, frozenset({Scope.INFERENCE}), models=frozenset({MODEL}))
    headers = {"authorization": f"Bearer {key}"}
    index = await client.get_model_repository_index(headers=headers)
    assert [each.name for each in index.models] == [MODEL]
    with pytest.raises(InferenceServerException) as refused:
        await client.infer(EMBEDDER, [grpc_input("TEXT", "BYTES", [[b"a"]])], headers=headers)
    assert refused.value.status() == "StatusCode.PERMISSION_DENIED"


async def test_an_exhausted_limit_is_resource_exhausted_with_a_retry_time(
    kserve: RunningKserve, client: Any
) -> None:
    tenant = await kserve.router.new_tenant(limits=Limits(requests_per_min=1))
    key = await kserve.router.new_key(tenant)
    metadata = (("authorization", f"Bearer {key}"),)
    headers = dict(metadata)
    await client.infer(MODEL, prompt_inputs(grpc_input), headers=headers)
    results = await stream(client, [request()], headers=headers)
    assert str(results[0]).startswith("rate_limit_exceeded: ")
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ModelInfer(raw_request(), metadata=metadata)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers: Any = refused.value.trailing_metadata()
    assert int(dict(trailers)["retry-after"]) >= 1


def raw_request(request_id: str = "", wants_final: bool = False) -> Any:
    message = service_pb2.ModelInferRequest(model_name=MODEL, id=request_id)
    if wants_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    text = message.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    text.contents.bytes_contents.append(b"hi")
    most = message.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1])
    most.contents.int_contents.append(3)
    return message


async def test_a_client_that_cancels_stops_the_engine(kserve: RunningKserve, client: Any) -> None:
    kserve.triton.script = lambda request: [Reply("a", pause_s=3600)]
    asking = asyncio.ensure_future(client.infer(MODEL, prompt_inputs(grpc_input)))
    await soon(kserve.triton.began.wait())
    asking.cancel()
    await kserve.router.until(lambda: not kserve.triton.running)
    assert kserve.triton.stops
    await kserve.router.until(lambda: kserve.router.permits.open_count == 0)
    ended = kserve.router.metric(
        "inflight_requests_ended_total", outcome="cancelled", model=MODEL, tenant="local"
    )
    assert ended == 1


async def test_leaving_a_stream_stops_every_request_in_it(kserve: RunningKserve, client: Any) -> None:
    kserve.triton.script = lambda request: [Reply("a"), Reply("b", pause_s=3600)]
    asked = [request(request_id=str(number)) for number in range(3)]

    async def each() -> AsyncIterator[dict[str, Any]]:
        for one in asked:
            yield one
        await asyncio.sleep(3600)

    found = client.stream_infer(each())
    await found.__anext__()
    await kserve.router.until(lambda: len(kserve.triton.running) == 3)
    found.cancel()
    await kserve.router.until(lambda: not kserve.triton.running)
    assert len(set(kserve.triton.stops)) == 3
    await kserve.router.until(lambda: kserve.router.permits.open_count == 0)


async def test_a_client_that_does_not_read_is_ended_with_a_status(
    kserve: RunningKserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "Stream", partial(Stream, send_timeout_s=0.2))
    kserve.triton.script = lambda request: [*[Reply("x" * 10_000)] * 1_000, Reply(finish="length")]
    asked = raw_request()
    asked.inputs.add(name="stream", datatype="BOOL", shape=[1, 1]).contents.bool_contents.append(True)
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        await call.write(asked)
        await kserve.router.until(lambda: kserve.router.permits.open_count == 1)
        await kserve.router.until(lambda: kserve.router.permits.open_count == 0)
        with pytest.raises(grpc.aio.AioRpcError, match=r"read nothing for 0\.2 s") as caught:
            await soon(read_all(call))
    assert caught.value.code() is grpc.StatusCode.CANCELLED


async def read_all(call: Any) -> None:
    async for _ in call:
        pass


def ask_with_threads(url: str) -> list[Any]:
    results: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(url) as client:
        whole = client.infer(MODEL, prompt_inputs(grpc_input))
        client.start_stream(callback=lambda result, error: results.put(error or result))
        client.async_stream_infer(**request(), enable_empty_final_response=True)
        found = [results.get(timeout=patience(30))]
        while not found[-1].get_response().parameters["triton_final_response"].bool_param:
            found.append(results.get(timeout=patience(30)))
        client.stop_stream()
    return [whole, *found]


async def test_the_threaded_client_works(kserve: RunningKserve) -> None:
    whole, *streamed = await asyncio.to_thread(ask_with_threads, kserve.grpc_url)
    assert "".join(texts(streamed)) == "Hello world"
    assert texts([whole])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_messages_are_read_like_any_other(
    kserve: RunningKserve, client: Any, algorithm: str
) -> None:
    result = await client.infer(MODEL, prompt_inputs(grpc_input), compression_algorithm=algorithm)
    assert texts([result]) == ["Hello world"]
    assert texts(await stream(client, [request()], compression_algorithm=algorithm)) == ["Hello", " world"]
    compression = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}[algorithm]
    async with grpc.aio.insecure_channel(kserve.grpc_url, compression=compression) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert (await stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL))).ready


async def test_large_messages_are_refused_however_small_they_came(kserve: RunningKserve, client: Any) -> None:
    large = prompt_inputs(grpc_input, "a" * (2 << 20))
    with pytest.raises(InferenceServerException) as refused:
        await client.infer(MODEL, large)
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    for algorithm in ("gzip", "deflate"):
        with pytest.raises(InferenceServerException, match="when it is decompressed") as refused:
            await client.infer(MODEL, large, compression_algorithm=algorithm)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    (error,) = await stream(client, [{"model_name": MODEL, "inputs": large}], compression_algorithm="gzip")
    assert "when it is decompressed" in str(error)
    assert not kserve.triton.requests


@pytest.mark.parametrize("raw", [b"\x1f\x8bnonsense", b"\x78\x9cnonsense", b"\xff" * 9])
async def test_a_message_that_cannot_be_read_is_refused_in_words(kserve: RunningKserve, raw: bytes) -> None:
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        for method in ("ModelInfer", "ModelReady"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}", bytes, bytes)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(raw)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_no_request_begins_like_compressed_data() -> None:
    """By its first byte: a field of the number 15."""
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert not [method.name for method in service.methods if 15 in method.input_type.fields_by_number]


async def test_while_draining_requests_are_refused_and_idle_streams_end(
    kserve: RunningKserve, client: Any
) -> None:
    async def forever() -> AsyncIterator[dict[str, Any]]:
        yield request()
        await asyncio.sleep(3600)

    idle = client.stream_infer(forever())
    await idle.__anext__()
    await kserve.router.until(lambda: kserve.router.permits.open_count == 0)
    kserve.router.permits.drain()
    assert not await client.is_server_ready()
    with pytest.raises(InferenceServerException, match="shutting down") as refused:
        await client.infer(MODEL, prompt_inputs(grpc_input))
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    await soon(kserve.server.stop(3600))


async def test_an_unreachable_triton_is_unavailable(kserve: RunningKserve, client: Any) -> None:
    await kserve.triton.stop()
    with pytest.raises(InferenceServerException) as failed:
        await client.infer(MODEL, prompt_inputs(grpc_input))
    assert failed.value.status() == "StatusCode.UNAVAILABLE"
