"""Triton's own clients with the tensors of NVIDIA's LLM API model, against the router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import tritonclient.grpc.aio as triton_aio
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from python_backend.wire.llmapi import LLMAPI
from python_backend.wire.tensors import ENSEMBLE
from router.kserve.llmapi import INPUTS, as_ensemble
from router.kserve.tensors import Value
from tests.fakes.triton_server import story
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, is_clear, outcome, received
from tests.router.kserve.running import RunningKserve
from tests.router.kserve.test_grpc_clients import stream
from tests.router.running import EMBEDDER, MODEL

NAME = f"{MODEL}.llmapi"


@pytest.fixture
async def client(kserve: RunningKserve) -> AsyncIterator[triton_aio.InferenceServerClient]:
    async with triton_aio.InferenceServerClient(kserve.grpc_url) as opened:
        yield opened


def inputs(**more: tuple[str, Any]) -> list[Any]:
    return [
        grpc_input("text_input", "BYTES", [b"hi"]),
        *(grpc_input(name, dtype, [value]) for name, (dtype, value) in more.items()),
    ]


async def test_a_plain_request_is_answered_whole_by_the_names_of_the_llm_api(
    kserve: RunningKserve, client: Any
) -> None:
    kserve.triton.script = lambda request: story("Hello world")
    result = await client.infer(
        NAME,
        inputs(
            sampling_param_max_tokens=("INT32", 5),
            sampling_param_top_p=("FP32", 0.5),
            sampling_param_stop=("BYTES", b"."),
            sampling_param_exclude_input_from_output=("BOOL", True),
            return_finish_reason=("BOOL", True),
        ),
        request_id="mine",
    )
    assert result.as_numpy("text_output").tolist() == [b"Hello world"]
    assert result.as_numpy("finish_reason").tolist() == [b"stop"]
    assert {each.name for each in result.get_response().outputs} == {"text_output", "finish_reason"}
    sent = received(kserve.triton)
    assert (sent["text_input"], sent["max_tokens"], sent["stream"]) == ([b"hi"], [5], [False])
    assert sent["top_p"] == [0.5]
    assert sent["stop_words"][0] == b"."
    assert sent["exclude_input_in_output"] == [True]


async def test_each_response_of_a_stream_has_the_whole_text_so_far(
    kserve: RunningKserve, client: Any
) -> None:
    kserve.triton.script = lambda request: story("Hel", "lo", " world", finish="length")
    asked = inputs(streaming=("BOOL", True), return_finish_reason=("BOOL", True))
    results = await stream(client, [{"model_name": "llmapi", "inputs": asked}])
    found = [
        (each.as_numpy("text_output").tolist()[0], each.as_numpy("finish_reason").tolist()[0])
        for each in results
        if each.as_numpy("text_output") is not None
    ]
    assert found == [(b"Hel", b"None"), (b"Hello", b"None"), (b"Hello world", b"length")]
    assert received(kserve.triton)["max_tokens"] == [32]


async def test_http_generate_takes_plain_fields(kserve: RunningKserve) -> None:
    kserve.triton.script = lambda request: story("Hello world")
    async with httpx.AsyncClient(base_url=f"http://{kserve.http_url}", timeout=patience(30)) as http:
        body = {"text_input": "hi", "sampling_param_max_tokens": 3}
        answer = await http.post(f"/v2/models/{NAME}/generate", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["text_output"] == "Hello world"
        described = (await http.get(f"/v2/models/{NAME}")).json()
    assert {each["name"]: each["shape"] for each in described["inputs"]}["text_input"] == [-1]
    assert [each["name"] for each in described["inputs"]] == [each.name for each in LLMAPI.inputs]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sampling_param_best_of": ("INT32", 2)}, "sampling_param_best_of' is 2; allowed: 1"),
        (
            {"lora_path": ("BYTES", b"/etc")},
            "'lora_path' is not supported here: an adapter is a separate model",
        ),
        ({"image_url": ("BYTES", b"x")}, "'image_url' is not supported here"),
        ({"return_stop_reason": ("BOOL", True)}, "the stop word that ended an answer is not reported"),
        ({"stop": ("BOOL", True)}, "cancel the request itself"),
        ({"max_tokens": ("INT32", 4)}, "input 'max_tokens' does not exist; allowed are text_input"),
        ({"sampling_param_max_tokens": ("INT32", 0)}, "allowed are 1 to"),
    ],
)
async def test_what_is_not_done_is_refused_by_name(
    client: Any, given: dict[str, tuple[str, Any]], said: str
) -> None:
    with pytest.raises(InferenceServerException, match=said):
        await client.infer(NAME, inputs(**given))


async def test_several_prompts_and_other_models_are_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="has 2 texts; allowed: one per request"):
        await client.infer(NAME, [grpc_input("text_input", "BYTES", [b"a", b"b"])])
    with pytest.raises(InferenceServerException, match="is not a language model"):
        await client.infer(f"{EMBEDDER}.llmapi", inputs())
    with pytest.raises(InferenceServerException, match="'nobody' does not exist"):
        await client.infer("nobody.llmapi", inputs())


ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "BYTES": st.binary(max_size=3),
    "BOOL": st.booleans(),
    "INT32": st.integers(-3, 99),
    "UINT64": st.integers(0, 99),
    "FP32": st.floats(0, 2, width=32),
}


@given(
    st.fixed_dictionaries(
        {"text_input": st.lists(ELEMENTS["BYTES"], min_size=1, max_size=2)},
        optional={
            name: st.lists(ELEMENTS[tensor.dtype], min_size=1, max_size=1)
            for name, tensor in INPUTS.items()
            if name != "text_input"
        },
    )
)
def test_any_request_is_one_row_of_the_ensembles_contract_or_a_clear_refusal(
    given: dict[str, list[Any]],
) -> None:
    values = {name: Value(INPUTS[name].dtype, (len(each),), each) for name, each in given.items()}
    found = outcome(lambda: as_ensemble(values))
    if is_clear(found):
        return
    known = {tensor.name: tensor for tensor in ENSEMBLE.inputs}
    assert {tensor.name for tensor in ENSEMBLE.inputs if not tensor.optional} <= found.keys()
    for name, value in found.items():
        assert value.dtype == known[name].dtype
        assert value.rows == 1
        assert all(dim in (-1, size) for dim, size in zip(known[name].dims, value.shape[1:], strict=True))
