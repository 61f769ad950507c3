"""Triton's own clients through the router: the same answers as from Triton, with keys and limits."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from benchmarks.stack import RunningStack
from client.triton import GenerationFailed, TritonTextClient
from router.core.tenant import Limits, Role
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, http_input, prompt_inputs
from tests.stack.router_beside import router_beside
from tests.stack.test_triton_clients import ask as ask_triton
from tests.waiting import wait_until

pytestmark = pytest.mark.stack

ROOT = Path(__file__).parents[2]
PROMPT = "The capital of France is"


def prompt(make: Any, **more: tuple[str, Any]) -> list[Any]:
    return prompt_inputs(make, PROMPT, 6, **more)


def text(result: Any) -> str:
    found = result.as_numpy("text_output")
    return "" if found is None else b"".join(found.flatten()).decode()


def stream(url: str, model: str) -> list[Any]:
    """Results in order of arrival, up to the final one."""
    results: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: results.put(error or result))
        inputs = prompt(grpc_input, stream=("BOOL", [[True]]))
        client.async_stream_infer(model, inputs, request_id="mine", enable_empty_final_response=True)
        answers = [results.get(timeout=60)]
        while not answers[-1].get_response().parameters["triton_final_response"].bool_param:
            answers.append(results.get(timeout=60))
        client.stop_stream()
    return answers


def test_a_stream_through_the_router_says_what_triton_says(stack: RunningStack) -> None:
    direct = ask_triton(stack, stream=True)
    through = stream(stack.grpc_url, stack.model)
    assert "".join(map(text, through)) == "".join(map(text, direct))
    assert len(through) > 2
    names = {output.name for answer in through for output in answer.get_response().outputs}
    assert names == {output.name for answer in direct for output in answer.get_response().outputs}
    assert {answer.get_response().id for answer in through} == {"mine"}


def test_plain_infer_gathers_the_answer_and_echoes_the_prompt_as_the_contract_does(
    steady_stack: RunningStack,
) -> None:
    streamed = "".join(map(text, stream(steady_stack.grpc_url, "ensemble")))
    with triton.InferenceServerClient(steady_stack.grpc_url) as client:
        assert text(client.infer("ensemble", prompt(grpc_input))) == PROMPT + streamed
    address = steady_stack.url.removeprefix("http://")
    with triton_http.InferenceServerClient(address) as http:
        result = http.infer(
            steady_stack.model, prompt(http_input, exclude_input_in_output=("BOOL", [[True]]))
        )
        assert text(result) == streamed


def test_nvidias_llm_api_contract_is_answered_by_the_same_engine(steady_stack: RunningStack) -> None:
    """In shapes without rows, whole or as the whole text so far."""
    usual = "".join(map(text, stream(steady_stack.grpc_url, "ensemble")))
    asked = [
        grpc_input("text_input", "BYTES", [PROMPT.encode()]),
        grpc_input("sampling_param_max_tokens", "INT32", [6]),
        grpc_input("sampling_param_exclude_input_from_output", "BOOL", [True]),
        grpc_input("return_finish_reason", "BOOL", [True]),
        grpc_input("return_cumulative_logprob", "BOOL", [True]),
    ]
    with triton.InferenceServerClient(steady_stack.grpc_url) as client:
        whole = client.infer("llmapi", asked)
    assert text(whole) == usual
    assert whole.as_numpy("finish_reason").tolist() == [b"length"]
    assert whole.as_numpy("cumulative_logprob")[0] < 0
    body = {"text_input": PROMPT, "sampling_param_max_tokens": 6, "streaming": True}
    url = f"{steady_stack.url}/v2/models/{steady_stack.model}.llmapi/generate_stream"
    answer = httpx.post(url, json=body, timeout=patience(60))
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    texts = [each["text_output"] for each in told if "text_output" in each]
    assert len(texts) > 1
    assert texts == sorted(texts, key=len)
    assert texts[-1] == usual


def test_rows_and_sequences_come_stacked_in_one_tensor(stack: RunningStack) -> None:
    inputs = [
        grpc_input("text_input", "BYTES", [[PROMPT.encode()], [b"1, 2, 3, 4,"]]),
        grpc_input("max_tokens", "INT32", [[3], [5]]),
        grpc_input("exclude_input_in_output", "BOOL", [[True], [True]]),
        grpc_input("return_num_output_tokens", "BOOL", [[True], [True]]),
    ]
    with triton.InferenceServerClient(stack.grpc_url) as client:
        result = client.infer(stack.model, inputs)
    assert result.as_numpy("num_output_tokens").flatten().tolist() == [3, 5]
    first, second = result.as_numpy("text_output").flatten().tolist()
    assert first.startswith(b" Paris")
    assert b"5" in second


def test_generate_and_generate_stream_give_the_same_text(steady_stack: RunningStack) -> None:
    fields = {"text_input": PROMPT, "max_tokens": 6, "exclude_input_in_output": True}
    with httpx.Client(base_url=steady_stack.url, trust_env=False, verify=False, timeout=patience(60)) as http:
        whole = http.post(f"/v2/models/{steady_stack.model}/generate", json=fields).json()
        url = f"/v2/models/{steady_stack.model}/generate_stream"
        with http.stream("POST", url, json={**fields, "stream": True}) as answer:
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    assert "".join(event.get("text_output", "") for event in events) == whole["text_output"]
    assert whole["finish_reason"] == "length"
    assert len(events) > 1


def test_models_describe_themselves_and_steps_do_not(stack: RunningStack) -> None:
    with triton.InferenceServerClient(stack.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(stack.model)
        names = [model.name for model in client.get_model_repository_index().models]
        assert stack.model in names
        assert not set(names) & {"preprocessing", "tensorrt_llm", "postprocessing"}
        with pytest.raises(InferenceServerException, match="a step of other models"):
            client.get_model_metadata("tensorrt_llm")


def test_embeddings_have_length_one(stack: RunningStack) -> None:
    with triton_http.InferenceServerClient(stack.url.removeprefix("http://")) as http:
        names = [model["name"] for model in http.get_model_repository_index()]
        if len(names) < 2:
            pytest.skip("no embedding model is served here")
        result = http.infer("embeddings", [http_input("TEXT", "BYTES", [[b"one"], [b"two"]])])
    vectors = result.as_numpy("EMBEDDING")
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)


def test_an_engines_refusal_comes_back_in_its_own_words(stack: RunningStack) -> None:
    inputs = prompt(grpc_input, beam_width=("INT32", [[4]]))
    with (
        triton.InferenceServerClient(stack.grpc_url) as client,
        pytest.raises(InferenceServerException, match="beam_width") as refused,
    ):
        client.infer(stack.model, inputs)
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def test_the_projects_own_triton_client_works_and_stops_the_engine_when_it_leaves(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    with TritonTextClient(stack.grpc_url) as client:
        whole = client.generate(PROMPT, 6)
        assert (whole.completion_tokens, whole.finish_reason) == (6, "length")
        parts = client.stream(PROMPT, long_answer_tokens, end_id=-1)
        next(parts)
        parts.close()  # type: ignore[attr-defined]  # it is a generator
        wait_until(lambda: not stack.used_blocks(), "the engine goes on")
        with pytest.raises(GenerationFailed, match="max_tokens"):
            client.generate(PROMPT, 0)


@dataclass(frozen=True)
class KeyedRouter:
    """A router of its own in front of the same Triton, with one key that may send three requests a minute."""

    http_url: str
    grpc_url: str
    model: str
    headers: dict[str, str]


@pytest.fixture
def keyed(stack: RunningStack, default_checkpoint: Path, tmp_path: Path) -> Iterator[KeyedRouter]:
    with open_administration(tmp_path) as admin:
        tenant = admin.create_organisation(SYSTEM, "acme").id
        user = admin.create_user(SYSTEM, tenant, "ada", Role.MEMBER)
        key = admin.create_key(SYSTEM, tenant, user.id, "test")[1]
        admin.set_limits(SYSTEM, tenant, Limits(requests_per_min=3))
    with router_beside(stack, default_checkpoint, tmp_path) as (port, grpc_port):
        headers = {"authorization": f"Bearer {key}"}
        yield KeyedRouter(f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}", stack.model, headers)


def test_keys_and_limits_hold_for_both_of_tritons_protocols(keyed: KeyedRouter) -> None:
    with triton.InferenceServerClient(keyed.grpc_url) as grpc_client:
        with pytest.raises(InferenceServerException) as refused:
            grpc_client.infer(keyed.model, prompt(grpc_input))
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        grpc_client.infer(keyed.model, prompt(grpc_input), headers=keyed.headers)
    with triton_http.InferenceServerClient(keyed.http_url) as http:
        with pytest.raises(InferenceServerException) as refused:
            http.infer(keyed.model, prompt(http_input), headers={"authorization": "Bearer ik-wrong"})
        assert refused.value.status() == "401"
        http.infer(keyed.model, prompt(http_input), headers=keyed.headers)
        stats = http.get_inference_statistics(keyed.model, headers=keyed.headers)
        assert stats["model_stats"][0]["inference_count"] == 2
        with pytest.raises(InferenceServerException, match="limit of requests") as refused:
            http.infer(keyed.model, prompt(http_input), headers=keyed.headers)
        assert refused.value.status() == "429"


def test_the_examples_of_the_documentation_run_as_they_stand(stack: RunningStack) -> None:
    page = (ROOT / "docs" / "triton-clients.md").read_text()
    page = page.replace("http://127.0.0.1:8080", stack.url).replace("127.0.0.1:8081", stack.grpc_url)
    for language, command in (("python", [sys.executable, "-c"]), ("bash", ["bash", "-c"])):
        examples = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert examples
        for example in examples:
            done = subprocess.run(
                [*command, example], capture_output=True, text=True, timeout=patience(60), cwd=ROOT
            )
            assert "Paris" in done.stdout, done.stdout + done.stderr
