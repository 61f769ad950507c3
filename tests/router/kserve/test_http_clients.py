"""Triton's own HTTP clients against the router, and the generate extension, for which they have no method."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from router.core.tenant import Limits
from tests.fakes.triton_server import Reply, story
from tests.pace import patience
from tests.router.kserve.asking import http_input, prompt_inputs, received
from tests.router.kserve.running import RunningKserve
from tests.router.running import EMBEDDER, MODEL


@pytest.fixture
async def client(kserve: RunningKserve) -> AsyncIterator[triton_aio.InferenceServerClient]:
    async with triton_aio.InferenceServerClient(kserve.http_url) as opened:
        yield opened


@pytest.fixture
async def http(kserve: RunningKserve) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as opened:
        yield opened


async def test_server_and_models_describe_themselves(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(MODEL, "1")
    assert not await client.is_model_ready("other")
    assert (await client.get_server_metadata())["name"] == "inflight"
    metadata = await client.get_model_metadata(EMBEDDER)
    assert metadata["inputs"][0] == {"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}
    config = await client.get_model_config("ensemble", "1")
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert [model["name"] for model in await client.get_model_repository_index()] == [MODEL, EMBEDDER]


@pytest.mark.parametrize("binary", [True, False])
async def test_tensors_go_in_and_out_as_bytes_and_as_json(
    kserve: RunningKserve, client: Any, binary: bool
) -> None:
    make = partial(http_input, binary=binary)
    inputs = prompt_inputs(make, seed=("UINT64", [[2**63 + 1]]))
    wanted = [triton.InferRequestedOutput("text_output", binary_data=binary)]
    result = await client.infer(MODEL, inputs, request_id="mine", outputs=wanted)
    assert result.as_numpy("text_output").tolist() == [b"Hello world" if binary else "Hello world"]
    response = result.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == (MODEL, "1", "mine")
    sent = received(kserve.triton)
    assert (sent["text_input"], sent["seed"], sent["stream"]) == ([b"hi"], [2**63 + 1], [False])
    everything = await client.infer(MODEL, inputs)
    assert everything.as_numpy("finish_reason").tolist() == [b"end_id"]


async def test_embeddings_come_as_floats(client: Any) -> None:
    inputs = [
        http_input("INPUT_IDS", "INT32", [[5, 6], [7, -1]]),
        http_input("DIMENSIONS", "INT32", [[2], [2]]),
    ]
    result = await client.infer("embeddings", inputs)
    assert result.as_numpy("EMBEDDING").tolist() == [[11.0, 12.0], [7.0, 8.0]]


async def test_generate_turns_fields_into_tensors_and_back(kserve: RunningKserve, http: Any) -> None:
    body = {"text_input": "hi", "max_tokens": 3, "temperature": 1, "stop_words": ["a"], "id": "mine"}
    answer = await http.post(f"/v2/models/{MODEL}/generate", json=body)
    assert answer.json() == {
        "id": "mine",
        "model_name": MODEL,
        "model_version": "1",
        "text_output": "Hello world",
        "finish_reason": "end_id",
    }
    sent = received(kserve.triton)
    assert (sent["temperature"], sent["stop_words"]) == ([1.0], [b"a", b"", b"", b""])


async def test_a_content_type_is_not_needed_as_curl_sends_another(http: Any) -> None:
    data = json.dumps({"text_input": "hi", "max_tokens": 3})
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await http.post(f"/v2/models/{MODEL}/generate", content=data, headers=form)
    assert answer.json()["text_output"] == "Hello world"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "text/plain;charset=UTF-8"},
        {"content-type": "multipart/form-data; boundary=x"},
        {
            "content-type": "application/x-www-form-urlencoded",
            "user-agent": "Mozilla/5.0 (X11) Firefox/140.0",
        },
        {"content-type": "application/json", "origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_what_a_page_may_have_a_browser_send_is_refused(http: Any, headers: dict[str, str]) -> None:
    data = json.dumps({"text_input": "hi", "max_tokens": 3})
    for path in (f"/v2/models/{MODEL}/generate", f"/v2/models/{MODEL}/infer"):
        answer = await http.post(path, content=data, headers=headers)
        assert answer.status_code in (403, 415)
        assert isinstance(answer.json()["error"], str)


async def test_generate_stream_sends_an_event_for_each_response(kserve: RunningKserve, http: Any) -> None:
    kserve.triton.script = lambda request: [*story("a\u2028", "\n\ndata: b"), Reply(final=True, bare=True)]
    body = {"text_input": "hi", "parameters": {"max_tokens": 3}, "stream": True}
    answer = await http.post(f"/v2/models/{MODEL}/versions/1/generate_stream", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert [json.loads(event)["text_output"] for event in events] == ["a\u2028", "\n\ndata: b"]


async def test_errors_are_in_tritons_shape(kserve: RunningKserve, client: Any, http: Any) -> None:
    with pytest.raises(InferenceServerException, match="input 'wrong' does not exist"):
        await client.infer(MODEL, [*prompt_inputs(http_input), http_input("wrong", "BOOL", [[True]])])
    for path, status in (("/v2/nothing", 404), ("/v2/models/other", 404), ("/v2/logging", 403)):
        answer = await http.get(path)
        assert answer.status_code == status
        assert isinstance(answer.json()["error"], str)
    assert (await http.get(f"/v2/models/{MODEL}/generate")).status_code == 405
    kserve.triton.script = lambda request: [Reply(error="invalid_request: no")]
    answer = await http.post(f"/v2/models/{MODEL}/generate", json={"text_input": "hi", "max_tokens": 3})
    assert (answer.status_code, answer.json()) == (400, {"error": "no"})
    kserve.triton.script = lambda request: [Reply("a"), Reply(error="engine_failed: stub died")]
    body = {"text_input": "hi", "max_tokens": 3, "stream": True}
    answer = await http.post(f"/v2/models/{MODEL}/generate_stream", json=body)
    assert answer.text.endswith('data: {"error":"the model cannot answer at the moment"}\n\n')


async def test_the_openapi_description_has_the_kserve_paths_and_their_errors(http: Any) -> None:
    document = (await http.get("/openapi.json")).json()
    infer = document["paths"]["/v2/models/{name}/infer"]["post"]
    assert infer["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "TritonError"
    )
    assert "InferBody" in document["components"]["schemas"]
    assert "/v2/models/{name}/generate" in (await http.get("/docs")).text


async def test_a_model_for_embeddings_does_not_decide_whether_the_server_is_ready(
    kserve: RunningKserve, client: Any
) -> None:
    kserve.router.embedder.is_ready = False
    assert not await client.is_model_ready(EMBEDDER)
    assert await client.is_server_ready()
    kserve.triton.ready = False
    await kserve.router.until_async(client.is_server_ready, False)


async def test_operators_calls_and_shared_memory_are_refused_with_the_reason(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="operator"):
        await client.unload_model(MODEL)
    with pytest.raises(InferenceServerException, match="operator"):
        await client.get_trace_settings(MODEL)
    with pytest.raises(InferenceServerException, match="shared memory"):
        await client.get_cuda_shared_memory_status()
    tensor = triton.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_shared_memory("region", 10)
    with pytest.raises(InferenceServerException, match="shared memory"):
        await client.infer(MODEL, [tensor])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_a_compressed_body_is_read_like_any_other(
    kserve: RunningKserve, client: Any, algorithm: str
) -> None:
    result = await client.infer(
        MODEL,
        prompt_inputs(http_input),
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert result.as_numpy("text_output").tolist() == [b"Hello world"]
    assert received(kserve.triton)["text_input"] == [b"hi"]


@pytest.mark.parametrize(
    ("encoding", "body", "status", "why"),
    [
        ("gzip", gzip.compress(b" " * (2 << 20)), 413, "larger than 1048576 bytes when it is decompressed"),
        ("deflate", zlib.compress(b" " * (1 << 20) + b"{}"), 413, "larger than 1048576 bytes"),
        ("gzip", b"{}", 400, "not valid gzip data"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-4], 400, "not one whole piece"),
        ("gzip", gzip.compress(b"{}", mtime=0) * 2, 400, "not one whole piece"),
        ("br", b"{}", 415, "allowed are identity, gzip, deflate"),
        ("gzip, gzip", gzip.compress(b"{}", mtime=0), 415, "allowed are identity, gzip, deflate"),
    ],
)
async def test_a_body_that_cannot_be_decompressed_or_becomes_too_large_is_refused(
    kserve: RunningKserve, http: Any, encoding: str, body: bytes, status: int, why: str
) -> None:
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    answer = await http.post(f"/v2/models/{MODEL}/generate", content=body, headers=headers)
    assert answer.status_code == status
    assert why in answer.json()["error"]
    assert not kserve.triton.requests


async def test_health_is_told_as_kserves_own_client_reads_it(kserve: RunningKserve, http: Any) -> None:
    assert (await http.get("/v2/health/live")).json() == {"live": True}
    assert (await http.get("/v2/health/ready")).json() == {"ready": True}
    assert (await http.get(f"/v2/models/{MODEL}/ready")).json() == {"name": MODEL, "ready": True}
    kserve.router.permits.drain()
    answer = await http.get("/v2/health/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False})


async def test_the_model_may_be_named_in_the_body_too(http: Any) -> None:
    inputs = [
        {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["hi"]},
        {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [3]},
    ]
    url = f"/v2/models/{MODEL}/infer"
    assert (await http.post(url, json={"model_name": MODEL, "inputs": inputs})).is_success
    other = await http.post(url, json={"model_name": "other", "inputs": inputs})
    assert (other.status_code, other.json()) == (
        400,
        {"error": f"model_name is 'other', and the path names '{MODEL}'"},
    )


async def test_keys_limits_and_usage_are_those_of_the_other_api(kserve: RunningKserve, client: Any) -> None:
    tenant = await kserve.router.new_tenant()
    key = await kserve.router.new_key(tenant, limits=Limits(requests_per_min=1))
    with pytest.raises(InferenceServerException, match="API key") as refused:
        await client.infer(MODEL, prompt_inputs(http_input))
    assert refused.value.status() == "401"
    headers = {"authorization": f"Bearer {key}"}
    await client.infer(MODEL, prompt_inputs(http_input), headers=headers)
    with pytest.raises(InferenceServerException, match="limit of requests") as refused:
        await client.infer(MODEL, prompt_inputs(http_input), headers=headers)
    assert refused.value.status() == "429"
    (usage,) = await kserve.router.usage(tenant)
    assert (usage.requests, usage.prompt_tokens) == (1, 5)
    other = {"authorization": f"Bearer {await kserve.router.new_key(tenant)}"}
    stats = await client.get_inference_statistics(headers=other)
    counts = {each["name"]: each["inference_count"] for each in stats["model_stats"]}
    assert (counts[MODEL], counts[EMBEDDER]) == (1, 0)


async def test_an_echoed_prompt_is_not_counted_as_answer(kserve: RunningKserve, client: Any) -> None:
    tenant = await kserve.router.new_tenant()
    headers = {"authorization": f"Bearer {await kserve.router.new_key(tenant)}"}
    kserve.triton.script = lambda request: [Reply("hi there", tokens=8, prompt_tokens=5, final=True)]
    await client.infer(MODEL, prompt_inputs(http_input), headers=headers)
    excluded = prompt_inputs(http_input, exclude_input_in_output=("BOOL", [[True]]))
    kserve.triton.script = lambda request: [Reply(" there", tokens=3, prompt_tokens=5, final=True)]
    await client.infer(MODEL, excluded, headers=headers)
    (usage,) = await kserve.router.usage(tenant)
    assert (usage.prompt_tokens, usage.completion_tokens) == (10, 6)


async def test_a_client_that_leaves_stops_the_engine(kserve: RunningKserve, http: Any) -> None:
    kserve.triton.script = lambda request: [Reply("a"), Reply("b", pause_s=3600)]
    body = {"text_input": "hi", "max_tokens": 3, "stream": True}
    async with http.stream("POST", f"/v2/models/{MODEL}/generate_stream", json=body) as answer:
        await answer.aiter_raw().__anext__()
    await kserve.router.until(lambda: not kserve.triton.running)
    assert kserve.triton.stops
    await kserve.router.until(lambda: kserve.router.permits.open_count == 0)


async def test_the_client_without_asyncio_works(kserve: RunningKserve) -> None:
    def ask() -> Any:
        with triton.InferenceServerClient(kserve.http_url) as client:
            return client.infer(MODEL, prompt_inputs(http_input)).as_numpy("text_output").tolist()

    assert await asyncio.to_thread(ask) == [b"Hello world"]


async def test_malformed_http_is_refused_in_tritons_error_shape(http: httpx.AsyncClient) -> None:
    """Before it is known who asks for what."""
    response = await http.get("/v2/models/tiny", headers={"not_a_header": "1"})
    assert response.status_code == 400
    assert response.json() == {"error": "header names with underscores are not accepted"}
    too_large = await http.post(f"/v2/models/{MODEL}/infer", content=b" " * ((1 << 20) + 1))
    assert too_large.status_code == 413
    assert isinstance(too_large.json()["error"], str)
