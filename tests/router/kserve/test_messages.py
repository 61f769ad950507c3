from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from python_backend.wire.errors import InflightError
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER
from router.kserve.generation import generation_offer
from router.kserve.llmapi import llmapi_offer
from router.kserve.messages import read_request
from router.kserve.offers import Asked, Offers
from router.routing.models import Registry, ServedModel
from tests.fakes.pipeline import FakePipeline
from tests.router.kserve.asking import is_clear, outcome

SERVED = ServedModel("tiny", FakePipeline())
OFFERS = Offers(Registry([SERVED]), lambda served: generation_offer(SERVED), llmapi_offer)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.one_of(st.sampled_from(["text_input", "max_tokens", "stream"]), TEXT)


def read(message: Any) -> Any:
    def read() -> Asked:
        record = Record("grpc ModelInfer", "infer-1", LOCAL_CALLER)
        return read_request(message, OFFERS.choose(message.model_name, message.model_version, record))

    return outcome(read)


def usual() -> Any:
    message = service_pb2.ModelInferRequest(model_name="tiny", id="mine")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"a")
    message.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1]).contents.int_contents.append(4)
    return message


def test_typed_contents_are_read_like_raw_bytes() -> None:
    asked = read(usual())
    assert isinstance(asked, Asked)
    assert asked.values["max_tokens"].elements == [4]
    assert (asked.name, asked.client_id, asked.outputs) == ("tiny", "mine", frozenset())


def wrongs() -> list[tuple[str, Any]]:
    cases = []

    def case(why: str) -> Any:
        message = usual()
        cases.append((why, message))
        return message

    case("does not exist").model_name = "../tiny"
    case("has no version '2'").model_version = "2"
    case("257 characters").id = "x" * 257
    case("both contents and raw").raw_input_contents.extend([b"", b""])
    case("2 inputs and 1 raw").raw_input_contents.append(b"")
    case("output 'x' does not exist").outputs.add(name="x")
    message = case("twice")
    message.outputs.add(name="text_output")
    message.outputs.add(name="text_output")
    case("is not supported").outputs.add(name="text_output").parameters["classification"].int64_param = 1
    case("shared memory").inputs[0].parameters["shared_memory_region"].string_param = "a"
    case("goes in bytes_contents").inputs[0].contents.int_contents.append(1)
    case("goes in raw_input").inputs.add(name="lora_weights", datatype="FP16").contents.fp32_contents.append(
        1
    )
    case("has no value").parameters["add_special_tokens"].Clear()
    case("is reserved").parameters["triton_x"].bool_param = True
    case("200000 outputs").outputs.extend(
        [service_pb2.ModelInferRequest.InferRequestedOutputTensor()] * 200_000
    )
    case("200002 inputs").inputs.extend([service_pb2.ModelInferRequest.InferInputTensor()] * 200_000)
    return cases


@pytest.mark.parametrize(("why", "message"), [pytest.param(*each, id=each[0]) for each in wrongs()])
def test_an_invalid_message_is_refused_with_the_reason(why: str, message: Any) -> None:
    error = read(message)
    assert isinstance(error, InflightError)
    assert why in error.message


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = service_pb2.ModelInferRequest(
        model_name=draw(st.one_of(st.just("tiny"), TEXT)), model_version=draw(st.sampled_from(["", "1", "x"]))
    )
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2), max_size=3))
        given = message.inputs.add(
            name=draw(NAMES), datatype=draw(st.sampled_from(["BYTES", "INT32"])), shape=shape
        )
        if draw(st.booleans()):
            given.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=3), max_size=2)))
        if draw(st.booleans()):
            given.contents.int_contents.extend(draw(st.lists(st.integers(-9, 9), max_size=2)))
    message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=9), max_size=3)))
    for name in draw(st.lists(TEXT, max_size=2)):
        message.outputs.add(name=name)
    for name in draw(st.lists(TEXT, max_size=2)):
        message.parameters[name].double_param = draw(st.floats())
    return message


@settings(deadline=None)
@given(messages())
def test_any_grpc_message_is_read_or_refused_clearly(message: Any) -> None:
    found = read(message)
    if isinstance(found, InflightError):
        assert found.kind.is_callers_fault
        assert found.message.isprintable()
    else:
        assert is_clear(found)
