"""The bytes that are put together for speed say what a message built field by field would say."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.tensors import ENSEMBLE
from router.core.generation import GenerationCall
from router.triton.messages import THIS_ROUTER, GenerateRequests

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
# Equal numbers are kept as one, so that a negative zero may be sent as a positive one.
NUMBER = st.floats(-2, 2, width=32).map(lambda value: value + 0.0)
CALLS = st.builds(
    GenerationCall,
    request_id=st.text("abc-123", min_size=1, max_size=200),
    prompt=TEXT | st.just("long " * 5000),
    max_tokens=st.integers(1, 1_000_000),
    seed=st.integers(0, 2**64 - 1),
    tenant=TEXT,
    stop=st.lists(TEXT, max_size=4).map(tuple),
    temperature=NUMBER,
    top_k=st.integers(0, 1000),
    top_p=NUMBER,
    min_tokens=st.integers(0, 1000),
    repetition_penalty=NUMBER,
    presence_penalty=NUMBER,
    frequency_penalty=NUMBER,
    ignore_eos=st.booleans(),
    add_special_tokens=st.booleans(),
    guide=st.none() | st.tuples(TEXT, TEXT),
    prompt_ids=st.none() | st.lists(st.integers(0, 50_000), min_size=1, max_size=50).map(tuple),
)


def field_by_field(call: GenerationCall) -> Any:
    message = service_pb2.ModelInferRequest(model_name="ensemble", id=call.request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["tenant"].string_param = call.tenant
    message.parameters["inflight_router"].string_param = THIS_ROUTER
    message.parameters["add_special_tokens"].bool_param = call.add_special_tokens
    values: dict[str, list[Any]] = {
        "text_input": [call.prompt],
        "max_tokens": [call.max_tokens],
        "stop_words": [*call.stop, *[""] * (4 - len(call.stop))],
        "top_k": [call.top_k],
        "top_p": [call.top_p],
        "temperature": [call.temperature],
        "repetition_penalty": [call.repetition_penalty],
        "min_tokens": [call.min_tokens],
        "presence_penalty": [call.presence_penalty],
        "frequency_penalty": [call.frequency_penalty],
        "seed": [call.seed],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
        "stream": [True],
        "exclude_input_in_output": [True],
        "return_perf_metrics": [True],
    }
    if call.ignore_eos:
        values["end_id"] = [-1]
    if call.guide is not None:
        values["guided_decoding_guide_type"] = [call.guide[0]]
        values["guided_decoding_guide"] = [call.guide[1]]
    if call.prompt_ids is not None:
        values["prompt_ids"] = list(call.prompt_ids)
    for name, elements in values.items():
        dtype = ENSEMBLE.input(name).dtype
        message.inputs.add(name=name, datatype=dtype, shape=[1, len(elements)])
        message.raw_input_contents.append(codec.encode(dtype, elements))
    return message


@settings(deadline=None)
@given(CALLS)
def test_fast_request_bytes_equal_a_message_built_field_by_field(call: GenerationCall) -> None:
    assert GenerateRequests("ensemble").build(call) == field_by_field(call)
