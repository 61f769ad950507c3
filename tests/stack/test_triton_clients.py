"""Triton's stock client, with nothing of ours, talks to the ensemble by the contract's names."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from benchmarks.stack import RunningStack

pytestmark = pytest.mark.stack

PROMPT = "The capital of France is"


def tensor(name: str, values: list[Any], dtype: str) -> triton.InferInput:
    array = np.asarray([values], dtype=np.object_ if dtype == "BYTES" else triton_dtype(dtype))
    tensor = triton.InferInput(name, list(array.shape), dtype)
    tensor.set_data_from_numpy(array)
    return tensor


def triton_dtype(dtype: str) -> Any:
    return {"INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_}[dtype]


def ask(stack: RunningStack, stream: bool, **more: tuple[str, list[Any]]) -> list[Any]:
    """Results in order of arrival, up to the final one; an error as what it is."""
    results: queue.Queue[Any] = queue.Queue()
    inputs = [
        tensor("text_input", [PROMPT.encode()], "BYTES"),
        tensor("max_tokens", [6], "INT32"),
        tensor("stream", [stream], "BOOL"),
        *(tensor(name, values, dtype) for name, (dtype, values) in more.items()),
    ]
    answers = []
    with triton.InferenceServerClient(stack.triton_grpc_url) as client:
        client.start_stream(callback=lambda result, error: results.put(error or result))
        client.async_stream_infer("ensemble", inputs, request_id="stock", enable_empty_final_response=True)
        while True:
            answer = results.get(timeout=60)
            answers.append(answer)
            if isinstance(answer, Exception):
                break
            if answer.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    return answers


def text(results: list[Any]) -> str:
    pieces = [result.as_numpy("text_output") for result in results]
    return "".join(piece[0].decode() for piece in pieces if piece is not None)


def test_streaming_gives_the_text_in_pieces(stack: RunningStack) -> None:
    streamed = ask(stack, stream=True)
    assert text(streamed).startswith(" Paris")
    assert len(streamed) > 1


def test_without_streaming_one_response_holds_prompt_and_answer(steady_stack: RunningStack) -> None:
    """The contract's default: the prompt is part of the output unless it is excluded."""
    whole = [
        result for result in ask(steady_stack, stream=False) if result.as_numpy("text_output") is not None
    ]
    assert len(whole) == 1
    assert text(whole) == PROMPT + text(ask(steady_stack, stream=True))
    excluded = ask(steady_stack, stream=False, exclude_input_in_output=("BOOL", [True]))
    assert text(excluded) == text(ask(steady_stack, stream=True))


def test_an_input_that_is_not_honoured_is_refused_by_name(stack: RunningStack) -> None:
    (error,) = ask(stack, stream=True, beam_width=("INT32", [4]))
    assert "beam_width" in str(error)
    assert text(ask(stack, stream=True)).startswith(" Paris")
