from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from router.kserve import messages
from router.kserve.prompts import INPUTS
from router.kserve.tensors import read_inputs
from tests.router.kserve.asking import is_clear, outcome

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["text_input", "max_tokens", "stop_words", "temperature", "other", "id", "parameters"]
)
INPUT = st.fixed_dictionaries(
    {
        "name": NAMES,
        "shape": st.lists(st.integers(), max_size=3),
        "datatype": st.sampled_from(["BYTES", "INT32"]),
    },
    optional={"data": JSON, "parameters": st.dictionaries(st.just("binary_data_size"), st.integers(-1, 9))},
)


def infer_body(*inputs: dict[str, Any], tail: bytes = b"", **more: Any) -> tuple[bytes, str]:
    head = json.dumps({"inputs": list(inputs), **more}).encode()
    return head + tail, str(len(head))


def prompt(**more: Any) -> dict[str, Any]:
    return {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", **more}


@settings(deadline=None)
@given(st.lists(INPUT, max_size=4), st.binary(max_size=20), st.one_of(st.none(), st.text(max_size=8)))
def test_any_infer_body_is_read_or_refused_clearly(
    inputs: list[dict[str, Any]], tail: bytes, length: str | None
) -> None:
    body, right = infer_body(*inputs, tail=tail)
    assert is_clear(outcome(lambda: read_inputs(INPUTS, messages.read_body(body, length)[1])))
    assert is_clear(outcome(lambda: read_inputs(INPUTS, messages.read_body(body, right)[1])))


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON))
def test_any_generate_body_is_read_or_refused_clearly(fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    assert is_clear(outcome(lambda: read_inputs(INPUTS, messages.read_fields(body, INPUTS)[1])))


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_not_json_are_refused_clearly(body: bytes) -> None:
    assert is_clear(outcome(lambda: messages.read_body(body, None)))
    assert is_clear(outcome(lambda: messages.read_fields(body, INPUTS)))


def test_bytes_behind_the_json_belong_to_inputs_in_their_order() -> None:
    first, second = b"\x02\0\0\0hi", b"\x03\0\0\0"
    most = {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "parameters": {"binary_data_size": 4}}
    body, length = infer_body(prompt(parameters={"binary_data_size": 6}), most, tail=first + second)
    _, inputs = messages.read_body(body, length)
    values = read_inputs(INPUTS, inputs)
    assert (values["text_input"].elements, values["max_tokens"].elements) == ([b"hi"], [3])


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30, "99999", "1e3", "", "٣", "0" * 12 + "9" * 5000])
def test_an_impossible_header_length_is_refused(length: str) -> None:
    body, _ = infer_body(prompt(data=["a"]))
    with pytest.raises(InflightError):
        messages.read_body(body, length)


@pytest.mark.parametrize(
    ("given", "tail", "why"),
    [
        (prompt(data=["a"]), b"x", "belong to no input"),
        (prompt(parameters={"binary_data_size": 9}), b"x", "extends past the end"),
        (prompt(parameters={"binary_data_size": True}), b"x", "whole numbers"),
        (prompt(parameters={"binary_data_size": 1}, data=["a"]), b"x", "both"),
        (prompt(parameters={"classification": 1}), b"", "unknown parameter"),
        (prompt(parameters={"shared_memory_region": "a"}), b"", "shared memory"),
        (prompt(), b"", "list of elements"),
        (prompt(data=[["a"], "b"]), b"", "different depths"),
        (prompt(data=[[[[[[[[[["a"]]]]]]]]]]), b"", "too deep"),
        (prompt(data=["a"], more=1), b"", "more"),
    ],
)
def test_tensor_data_that_does_not_match_its_description_is_refused(
    given: dict[str, Any], tail: bytes, why: str
) -> None:
    body, length = infer_body(given, tail=tail)
    with pytest.raises(InflightError, match=why):
        messages.read_body(body, length)


def test_json_elements_may_be_nested_as_their_shape_is() -> None:
    body, _ = infer_body(prompt(data=[["hi"]]))
    assert messages.read_body(body, None)[1][0].data == ["hi"]


@pytest.mark.parametrize(
    "parameters", [{"classification": 2}, {"shared_memory_region": "a"}, {"binary_data": 1}]
)
def test_outputs_take_binary_data_alone(parameters: dict[str, Any]) -> None:
    body, _ = infer_body(outputs=[{"name": "text_output", "parameters": parameters}])
    with pytest.raises(InflightError):
        messages.binary_outputs(messages.read_body(body, None)[0], by_default=False)


def test_a_field_given_twice_is_refused() -> None:
    body = json.dumps({"text_input": "a", "parameters": {"text_input": "b"}}).encode()
    with pytest.raises(InflightError, match="twice"):
        messages.read_fields(body, INPUTS)
