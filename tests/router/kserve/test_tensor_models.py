"""Any Triton model by its config, asked by Triton's own clients through the router."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as httpclient
import tritonclient.http.aio as http_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import Tensor
from router.core.tenant import Limits
from router.kserve import tensor_models
from router.kserve.tensors import ELEMENT_BYTES, by_name
from router.routing.models import ServedTensors, lineup_of
from router.safety.guard import Safety
from tests.fakes.tensors import FakeTensors, response
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, http_input
from tests.router.kserve.running import RunningKserve, running_kserve
from tests.router.kserve.test_guard import NoSecrets
from tests.router.running import MODEL
from tests.waiting import soon

DOCS = Path(__file__).parents[3] / "docs" / "triton-clients.md"
CLASSIFIER = "classifier"
TICKER = "ticker"  # answers as often as it likes
EVERYTHING = "everything"  # a tensor of each type, and no rows


def scores(request: Any) -> list[Any]:
    rows = request.inputs[0].shape[0]
    return [
        response(("SCORES", "FP32", [rows, 2], [0.5, 1.5] * rows), ("ID", "INT64", [rows, 1], [7] * rows))
    ]


def ticks(request: Any) -> list[Any]:
    return [response(("TICK", "INT32", [1], [number])) for number in range(3)] + [response(final=True)]


def echo(request: Any) -> list[Any]:
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    return [response(*((each.name, each.datatype, list(each.shape), raw) for each, raw in pairs))]


class Models:
    """The three of them, served beside the language model."""

    def __init__(self, kserve: RunningKserve) -> None:
        self.kserve = kserve
        self.classifier = FakeTensors(scores)
        self.ticker = FakeTensors(ticks)
        self.everything = FakeTensors(echo)
        image = by_name([Tensor("IMAGE", "FP32", (2, -1)), Tensor("TITLE", "BYTES", (1,), optional=True)])
        found = by_name([Tensor("SCORES", "FP32", (2,)), Tensor("ID", "INT64", (1,))])
        each_type = by_name(
            Tensor(dtype, dtype, (-1,), optional=True) for dtype in sorted({*ELEMENT_BYTES, "BYTES"})
        )
        self.publish(
            ServedTensors(
                CLASSIFIER, self.classifier, image, found, 4, version=2, triton_name="classifier.2"
            ),
            ServedTensors(
                TICKER,
                self.ticker,
                by_name([Tensor("COUNT", "INT32", (1,))]),
                by_name([Tensor("TICK", "INT32", (-1,))]),
                is_decoupled=True,
            ),
            ServedTensors(EVERYTHING, self.everything, each_type, each_type),
        )

    def publish(self, *served: ServedTensors) -> None:
        registry = self.kserve.registry
        registry.publish({**registry.lineups, **{each.name: lineup_of(each) for each in served}})


@pytest.fixture
def models(kserve: RunningKserve) -> Models:
    return Models(kserve)


@pytest.fixture
async def grpc(models: Models) -> AsyncIterator[grpc_aio.InferenceServerClient]:
    async with grpc_aio.InferenceServerClient(models.kserve.grpc_url) as opened:
        yield opened


@pytest.fixture
async def http(models: Models) -> AsyncIterator[http_aio.InferenceServerClient]:
    async with http_aio.InferenceServerClient(models.kserve.http_url) as opened:
        yield opened


@pytest.fixture
async def plain(models: Models) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"http://{models.kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as opened:
        yield opened


def image(make: Any, rows: int = 1) -> list[Any]:
    return [make("IMAGE", "FP32", [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]] * rows)]


def count(make: Any) -> list[Any]:
    return [make("COUNT", "INT32", [3])]


async def stream(client: Any, requests: Sequence[dict[str, Any]], **options: Any) -> list[Any]:
    async def each() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    return [error or result async for result, error in client.stream_infer(each(), **options)]


async def test_a_model_describes_itself_by_its_config(grpc: Any, http: Any, plain: httpx.AsyncClient) -> None:
    metadata = await http.get_model_metadata(CLASSIFIER)
    assert metadata["versions"] == ["2"]
    assert metadata["inputs"][0] == {"name": "IMAGE", "datatype": "FP32", "shape": [-1, 2, -1]}
    config = (await grpc.get_model_config(CLASSIFIER)).config
    assert (config.max_batch_size, config.input[1].optional, config.output[0].name) == (4, True, "SCORES")
    assert (await http.get_model_config(TICKER))["model_transaction_policy"] == {"decoupled": True}
    ticker = await grpc.get_model_metadata(TICKER)
    assert [each.shape for each in ticker.inputs] == [[1]]
    assert CLASSIFIER in [each["id"] for each in (await plain.get("/v1/models")).json()["data"]]
    body = {"model": CLASSIFIER, "messages": [{"role": "user", "content": "hi"}]}
    refused = await plain.post("/v1/chat/completions", json=body)
    assert (refused.status_code, "takes tensors" in refused.text) == (400, True)


async def test_tensors_go_through_and_nothing_else_does(models: Models, grpc: Any) -> None:
    result = await grpc.infer(CLASSIFIER, image(grpc_input, rows=3), request_id="mine")
    assert result.as_numpy("SCORES").tolist() == [[0.5, 1.5]] * 3
    assert result.as_numpy("ID").tolist() == [[7]] * 3
    answer = result.get_response()
    assert (answer.model_name, answer.model_version, answer.id) == (CLASSIFIER, "2", "mine")
    (sent,) = models.classifier.requests
    assert (sent.model_name, sent.model_version, dict(sent.parameters)) == ("", "", {})
    assert sent.id.startswith("infer-")
    assert [(each.name, list(each.shape)) for each in sent.inputs] == [("IMAGE", [3, 2, 3])]
    assert not sent.outputs


@pytest.mark.parametrize("binary", [True, False])
async def test_http_accepts_tensors_as_bytes_and_as_json(http: Any, models: Models, binary: bool) -> None:
    title = http_input("TITLE", "BYTES", [["a cat" if not binary else b"\xff\xd8"]], binary)
    asked = [httpclient.InferRequestedOutput("SCORES", binary_data=binary)]
    inputs = [http_input("IMAGE", "FP32", [[[1.0], [2.0]]], binary), title]
    result = await http.infer(CLASSIFIER, inputs, outputs=asked)
    assert result.as_numpy("SCORES").tolist() == [[0.5, 1.5]]
    assert result.as_numpy("ID") is None
    (sent,) = models.classifier.requests
    assert [each.name for each in sent.outputs] == ["SCORES"]
    assert sent.raw_input_contents[1] == (b"\x02\0\0\0\xff\xd8" if binary else b"\x05\0\0\0a cat")


async def test_tensors_of_every_type_come_back_as_they_went(models: Models, grpc: Any, http: Any) -> None:
    for dtype, size in {**ELEMENT_BYTES, "BYTES": 4}.items():
        for client, module in ((grpc, grpcclient), (http, httpclient)):
            tensor = module.InferInput(dtype, [1], dtype)
            # numpy has no BF16, and the client would make FP32 of it.
            tensor._raw_content = tensor._raw_data = bytes(size)
            if module is httpclient:
                tensor._parameters["binary_data_size"] = size
            result = await client.infer(EVERYTHING, [tensor])
            assert result.as_numpy(dtype).shape == (1,)
        assert [list(each.raw_input_contents) for each in models.everything.requests[-2:]] == [
            [bytes(size)]
        ] * 2


async def test_typed_contents_are_read_like_raw_bytes(models: Models, plain: httpx.AsyncClient) -> None:
    for dtype, values in (("INT8", [-128]), ("UINT16", [65535]), ("FP64", [0.1]), ("BOOL", [True])):
        body = {"inputs": [{"name": dtype, "datatype": dtype, "shape": [1], "data": values}]}
        answer = (await plain.post(f"/v2/models/{EVERYTHING}/infer", json=body)).json()
        assert answer["outputs"] == [{"name": dtype, "datatype": dtype, "shape": [1], "data": values}]
    halves = {"inputs": [{"name": "BF16", "datatype": "BF16", "shape": [1], "data": [1.0]}]}
    refused = await plain.post(f"/v2/models/{EVERYTHING}/infer", json=halves)
    assert "BF16 is sent as bytes" in refused.json()["error"]


async def test_an_answer_in_bf16_is_sent_as_bytes_alone(models: Models, plain: httpx.AsyncClient) -> None:
    models.everything.script = lambda request: [response(("BF16", "BF16", [1], b"\x80\x3f"))]
    refused = await plain.post(f"/v2/models/{EVERYTHING}/infer", json={"inputs": []})
    assert "request it with binary_data" in refused.json()["error"]
    body = {"inputs": [], "parameters": {"binary_data_output": True}}
    answer = await plain.post(f"/v2/models/{EVERYTHING}/infer", json=body)
    assert answer.content.endswith(b"}\x80\x3f")


async def test_the_documentations_example_is_answered(models: Models, plain: httpx.AsyncClient) -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    answer = await plain.post(f"/v2/models/{CLASSIFIER}/infer", content=example)
    assert answer.json()["outputs"][0]["data"] == [0.5, 1.5]


async def test_fields_of_a_json_object_become_tensors(plain: httpx.AsyncClient) -> None:
    answer = await plain.post(f"/v2/models/{EVERYTHING}/generate", json={"INT64": [1, 2], "BYTES": "a"})
    assert (answer.json()["INT64"], answer.json()["BYTES"]) == ([1, 2], "a")


async def test_tensors_that_the_config_does_not_allow_are_refused_before_anything_is_sent(
    models: Models, grpc: Any, http: Any
) -> None:
    for wrong, why in (
        (image(grpc_input, rows=5), "rows, 1 to 4"),
        ([grpc_input("IMAGE", "FP32", [1.0])], "has shape"),
        ([grpc_input("IMAGE", "INT32", [[[1], [2]]])], "allowed: FP32"),
        ([grpc_input("PICTURE", "FP32", [[[1.0], [2.0]]])], "allowed are IMAGE, TITLE"),
    ):
        with pytest.raises(InferenceServerException, match=why) as refused:
            await grpc.infer(CLASSIFIER, wrong)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    for parameters in ({"inflight_tier": "first"}, {"mine": 1}, {"add_special_tokens": True}):
        with pytest.raises(
            InferenceServerException, match=r"for language models|is not supported|allowed are"
        ):
            await http.infer(CLASSIFIER, image(http_input), parameters=parameters)
    region = httpclient.InferInput("IMAGE", [1, 2, 1], "FP32")
    region.set_shared_memory("region", 8)
    with pytest.raises(InferenceServerException, match="shared memory"):
        await http.infer(CLASSIFIER, [region])
    assert not models.classifier.requests


async def test_a_decoupled_model_is_called_in_a_stream(models: Models, grpc: Any) -> None:
    results = await stream(grpc, [{"model_name": TICKER, "inputs": count(grpc_input), "request_id": "a"}])
    assert [result.as_numpy("TICK").tolist() for result in results] == [[0], [1], [2]]
    (sent,) = models.ticker.requests
    assert set(sent.parameters) == {"triton_enable_empty_final_response"}
    with pytest.raises(InferenceServerException, match="call it as a stream") as refused:
        await grpc.infer(TICKER, count(grpc_input))
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


async def test_a_decoupled_models_answers_come_as_events_over_http(plain: httpx.AsyncClient) -> None:
    answer = await plain.post(f"/v2/models/{TICKER}/generate_stream", json={"COUNT": 3})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert [event["TICK"] for event in events] == [0, 1, 2]


async def test_any_model_may_be_called_in_a_stream(grpc: Any) -> None:
    asked = {"model_name": CLASSIFIER, "inputs": image(grpc_input)}
    results = await stream(grpc, [asked, asked])
    assert [result.as_numpy("SCORES").tolist() for result in results] == [[[0.5, 1.5]]] * 2
    assert results[0].get_response().parameters["triton_final_response"].bool_param


async def test_a_tensor_request_counts_as_one_request_without_tokens(models: Models, grpc: Any) -> None:
    router = models.kserve.router
    tenant = await router.new_tenant()
    key = await router.new_key(tenant, limits=Limits(requests_per_min=2, tokens_per_min=1))
    headers = {"authorization": f"Bearer {key}"}
    for _ in range(2):
        await grpc.infer(CLASSIFIER, image(grpc_input), headers=headers)
    with pytest.raises(InferenceServerException, match="limit of requests") as refused:
        await grpc.infer(CLASSIFIER, image(grpc_input), headers=headers)
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    (usage,) = await router.usage(tenant)
    assert (usage.group, usage.requests, usage.prompt_tokens) == ((CLASSIFIER,), 2, 0)
    other = {"authorization": f"Bearer {await router.new_key(tenant)}"}
    stats = await grpc.get_inference_statistics(CLASSIFIER, headers=other)
    assert [(each.version, each.inference_count) for each in stats.model_stats] == [("2", 2)]


async def test_a_key_for_other_models_is_refused(models: Models, grpc: Any) -> None:
    tenant = await models.kserve.router.new_tenant()
    key = await models.kserve.router.new_key(tenant, models=frozenset({MODEL}))
    with pytest.raises(InferenceServerException) as refused:
        await grpc.infer(CLASSIFIER, image(grpc_input), headers={"authorization": f"Bearer {key}"})
    assert refused.value.status() == "StatusCode.PERMISSION_DENIED"


async def test_a_client_that_disconnects_cancels_its_call(models: Models, grpc: Any) -> None:
    models.classifier.script = lambda request: [None]
    asking = asyncio.ensure_future(grpc.infer(CLASSIFIER, image(grpc_input)))
    await soon(models.classifier.began.wait())
    asking.cancel()
    router = models.kserve.router
    await router.until(lambda: models.classifier.cancelled == 1)
    await router.until(lambda: router.permits.open_count == 0)
    ended = {"outcome": "cancelled", "model": CLASSIFIER, "tenant": "local", "release": "2"}
    assert router.metric("inflight_requests_ended_total", **ended) == 1


async def test_a_client_that_disconnects_from_a_stream_stops_the_model(
    models: Models, plain: httpx.AsyncClient
) -> None:
    models.ticker.script = lambda request: [ticks(request)[0], None]
    path = f"/v2/models/{TICKER}/generate_stream"
    async with plain.stream("POST", path, json={"COUNT": 3}) as answer:
        await answer.aiter_raw().__anext__()
    await models.kserve.router.until(lambda: models.ticker.streams[0].stopped)
    await models.kserve.router.until(lambda: models.kserve.router.permits.open_count == 0)


@pytest.mark.parametrize("name", [CLASSIFIER, TICKER])
async def test_a_call_to_a_silent_model_times_out(
    models: Models, grpc: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tensor_models, "TIMEOUT_S", 0.05)
    models.classifier.script = models.ticker.script = lambda request: [None]
    inputs = {CLASSIFIER: image, TICKER: count}[name](grpc_input)
    (error,) = await stream(grpc, [{"model_name": name, "inputs": inputs}])
    assert str(error).endswith("the model did not answer in time")
    assert models.kserve.router.permits.open_count == 0
    assert models.classifier.cancelled == (name == CLASSIFIER)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([InflightError(ErrorKind.ENGINE_FAILED, "it cannot")], "it cannot"),
        ([response(("TICK", "INT64", [1], [1]))], "could not be read"),
        ([response(("TICK", "INT32", [2], [1]))], "could not be read"),
        ([response(("TICK", "INT32", [1], [1]))], "ended before the answer did"),
    ],
)
async def test_an_error_in_the_model_ends_the_request_once(
    models: Models, grpc: Any, script: list[Any], why: str
) -> None:
    models.ticker.script = lambda request: script
    results = await stream(grpc, [{"model_name": TICKER, "inputs": count(grpc_input)}])
    errors = [str(each) for each in results if isinstance(each, Exception)]
    assert len(errors) == 1
    assert why in errors[0]
    await models.kserve.router.until(lambda: models.kserve.router.permits.open_count == 0)


async def test_an_error_has_tritons_shape_over_http(models: Models, plain: httpx.AsyncClient) -> None:
    models.classifier.script = lambda request: [InflightError(ErrorKind.ENGINE_FAILED, "it cannot")]
    body = {"inputs": [{"name": "IMAGE", "datatype": "FP32", "shape": [1, 2, 1], "data": [1, 2]}]}
    answer = await plain.post(f"/v2/models/{CLASSIFIER}/infer", json=body)
    assert (answer.status_code, answer.json()) == (503, {"error": "it cannot"})


async def test_a_tensor_model_does_not_decide_whether_the_server_is_ready(models: Models, grpc: Any) -> None:
    models.classifier.is_ready = False
    assert not await grpc.is_model_ready(CLASSIFIER)
    assert await grpc.is_server_ready()
    index = {each.name: each.state for each in (await grpc.get_model_repository_index()).models}
    assert (index[CLASSIFIER], index[TICKER]) == ("UNAVAILABLE", "READY")


async def test_text_inputs_are_checked_by_the_operators_rules() -> None:
    async with running_kserve(Safety(NoSecrets())) as running:
        models = Models(running)
        async with grpc_aio.InferenceServerClient(running.grpc_url) as client:
            titled = [*image(grpc_input), grpc_input("TITLE", "BYTES", [[b"\xff a secret"]])]
            with pytest.raises(InferenceServerException, match="secrets"):
                await client.infer(CLASSIFIER, titled)
            assert not models.classifier.requests
            await client.infer(CLASSIFIER, image(grpc_input))


async def test_the_clients_without_asyncio_work(models: Models) -> None:
    def ask() -> list[Any]:
        found = []
        with httpclient.InferenceServerClient(models.kserve.http_url) as http:
            found.append(http.infer(CLASSIFIER, image(http_input)).as_numpy("SCORES"))
        with grpcclient.InferenceServerClient(models.kserve.grpc_url) as grpc:
            found.append(grpc.infer(CLASSIFIER, image(grpc_input)).as_numpy("SCORES"))
        return found

    assert all(np.array_equal(each, [[0.5, 1.5]]) for each in await asyncio.to_thread(ask))


def test_a_request_to_triton_holds_only_what_was_asked_for() -> None:
    empty = tensor_models.build("id", {}, frozenset(), False)
    assert empty == service_pb2.ModelInferRequest(id="id")
