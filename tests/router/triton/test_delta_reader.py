"""Responses that are known by their head are read exactly as protobuf reads them."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from router.core.generation import Delta
from router.triton import messages
from router.triton.messages import DeltaReader, ResponseReader, is_final, read_delta
from tests.tiers import examples

TEXTS = st.text(max_size=200)
MAX_TOKENS = 5
COUNTS = st.integers(0, 2**31 - 1)


def streamed(
    outputs: dict[str, tuple[str, list[Any]]], request_id: str = "r", final: bool | None = False
) -> bytes:
    response = service_pb2.ModelInferResponse(model_name="ensemble", model_version="1", id=request_id)
    for name, (dtype, values) in outputs.items():
        response.outputs.add(name=name, datatype=dtype, shape=[1, len(values)])
        response.raw_output_contents.append(codec.encode(dtype, values))
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    wrapped = service_pb2.ModelStreamInferResponse(infer_response=response)
    return bytes(wrapped.SerializeToString())


def token(text: str, tokens: int = 1) -> bytes:
    return streamed({"text_output": ("BYTES", [text]), "num_output_tokens": ("INT32", [tokens])})


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    outputs: dict[str, tuple[str, list[Any]]] = {}
    if draw(st.booleans()):
        outputs["text_output"] = ("BYTES", draw(st.lists(TEXTS, min_size=1, max_size=2)))
    for name in draw(st.sets(st.sampled_from(("num_input_tokens", "num_output_tokens", "cached_tokens")))):
        outputs[name] = ("INT32", [draw(COUNTS)])
    if draw(st.booleans()):
        outputs["finish_reason"] = ("BYTES", [draw(st.sampled_from(("", "length")))])
    if draw(st.booleans()):
        outputs["unknown"] = ("BYTES", [draw(TEXTS)])
    return streamed(
        outputs, draw(st.sampled_from(("r", "another"))), draw(st.sampled_from((True, False, None)))
    )


class ProtobufReader:
    """The same without a memory of heads."""

    def __init__(self) -> None:
        self._generated = 0

    def read(self, data: bytes) -> Any:
        try:
            message = service_pb2.ModelStreamInferResponse.FromString(data)
            if message.error_message:
                return str(message.error_message)
            delta = read_delta(message.infer_response)
        except (DecodeError, ValueError, struct.error) as error:
            return type(error)
        self._generated += delta.completion_tokens
        if delta.finish is None and is_final(message.infer_response):
            finish = "length" if self._generated >= MAX_TOKENS else "end_id"
            delta = msgspec.structs.replace(delta, finish=finish)
        return delta, delta.finish is not None


def by_reader(reader: DeltaReader, data: bytes) -> Any:
    try:
        delta = reader.read(data)
    except (DecodeError, ValueError, struct.error) as error:
        return type(error)
    return reader.error if delta is None else (delta, reader.is_last)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(responses(), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=12))
def test_any_responses_in_any_order_are_read_as_protobuf_reads_them(
    different: list[bytes], order: list[int]
) -> None:
    reader, protobuf = DeltaReader(MAX_TOKENS), ProtobufReader()
    for number in order:
        data = different[number % len(different)]
        assert by_reader(reader, data) == protobuf.read(data)


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_a_response_with_any_byte_changed_is_read_as_protobuf_reads_it(data: st.DataObject) -> None:
    whole = token(data.draw(TEXTS), data.draw(COUNTS))
    reader, protobuf = DeltaReader(MAX_TOKENS), ProtobufReader()
    for _ in range(2):
        assert by_reader(reader, whole) == protobuf.read(whole)
    changed = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert by_reader(reader, bytes(changed)) == protobuf.read(bytes(changed))


def test_an_error_among_tokens_is_none_and_says_so() -> None:
    reader = DeltaReader(MAX_TOKENS)
    for _ in range(3):
        assert reader.read(token("a")) == Delta("a", 1)
    error = service_pb2.ModelStreamInferResponse(error_message="gone").SerializeToString()
    assert reader.read(error) is None
    assert reader.error == "gone"
    assert reader.read(token("b")) == Delta("b", 1)


def test_protobuf_is_not_asked_again_for_what_differs_only_in_its_contents(monkeypatch: Any) -> None:
    reader = DeltaReader(MAX_TOKENS)
    for text in ("a", "b"):
        reader.read(token(text))
    monkeypatch.delattr(messages, "service_pb2")
    assert reader.read(token("é" * 90, 7)) == Delta("é" * 90, 7)
    assert not reader.is_last


def test_a_reader_of_responses_gives_them_as_they_are() -> None:
    reader = ResponseReader()
    first = reader.read(token("a"))
    assert (first.raw_output_contents[0], reader.is_last) == (codec.encode("BYTES", ["a"]), False)
    last = reader.read(streamed({}, final=True))
    assert (last.id, reader.is_last) == ("r", True)
    assert reader.read(service_pb2.ModelStreamInferResponse(error_message="gone").SerializeToString()) is None
    assert reader.error == "gone"
