from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import EMBEDDINGS, ENSEMBLE, Tensor
from router.kserve.tensors import MAX_ROWS, Sent, Value, by_name, read_inputs
from tests.router.kserve.asking import is_clear, outcome

INPUTS = by_name(ENSEMBLE.inputs)
PROMPT = Sent("text_input", "BYTES", [1, 1], codec.encode("BYTES", ["hi"]))
MOST = Sent("max_tokens", "INT32", [1, 1], codec.encode("INT32", [3]))
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "UINT8": st.integers(0, 255),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP16": st.floats(width=16, allow_nan=False, allow_infinity=False),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "BYTES": st.text(st.characters(codec="utf-8")).map(str.encode),
}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())
)
NAMES = st.sampled_from([tensor.name for tensor in ENSEMBLE.inputs])
DTYPES = st.sampled_from([*ELEMENTS, "FP64", "BF16", "", "\0"])
SHAPES = st.lists(
    st.one_of(st.integers(-2, 4), st.integers(-(2**63), 2**63 - 1)), max_size=6
)  # of any rank, mostly small


def refused(*inputs: Sent) -> str:
    with pytest.raises(InflightError) as error:
        read_inputs(INPUTS, inputs)
    assert error.value.kind is ErrorKind.INVALID_REQUEST
    return error.value.message


@st.composite
def good_inputs(draw: st.DrawFn) -> tuple[Tensor, Sent, list[Any]]:
    tensor = draw(st.sampled_from([t for t in ENSEMBLE.inputs if t.name not in ("text_input", "max_tokens")]))
    shape = [1, *(draw(st.integers(0, 3)) if size < 0 else size for size in tensor.dims)]
    elements = draw(st.lists(ELEMENTS[tensor.dtype], min_size=math.prod(shape), max_size=math.prod(shape)))
    data: Any = codec.encode(tensor.dtype, elements) if draw(st.booleans()) else elements
    return tensor, Sent(tensor.name, tensor.dtype, shape, data), elements


@settings(deadline=None)
@given(good_inputs())
def test_inputs_that_the_contract_allows_are_read_as_sent(case: tuple[Tensor, Sent, list[Any]]) -> None:
    tensor, sent, elements = case
    values = read_inputs(INPUTS, [PROMPT, MOST, sent])
    assert values[tensor.name] == Value(tensor.dtype, tuple(sent.shape), elements)


@settings(deadline=None)
@given(
    st.lists(
        st.builds(Sent, NAMES, DTYPES, SHAPES, st.one_of(st.binary(max_size=40), st.lists(ANYTHING))),
        max_size=5,
    )
)
def test_any_inputs_are_read_or_refused_clearly(inputs: list[Sent]) -> None:
    found = outcome(lambda: read_inputs(INPUTS, [PROMPT, MOST, *inputs]))
    assert is_clear(found)
    if not isinstance(found, InflightError):
        for value in found.values():
            codec.encode(value.dtype, value.elements)  # it can be sent on


@settings(deadline=None)
@given(NAMES, st.integers(1, 3), st.binary(max_size=24))
def test_bytes_of_any_length_fit_their_shape_or_are_refused(name: str, width: int, raw: bytes) -> None:
    dtype = ENSEMBLE.input(name).dtype
    found = outcome(lambda: read_inputs(INPUTS, [Sent(name, dtype, [1, width], raw), PROMPT, MOST]))
    assert is_clear(found)
    assert isinstance(found, InflightError) or len(found[name].elements) == width


def test_an_input_error_names_its_cause() -> None:
    assert "'nothing'" in refused(PROMPT, MOST, Sent("nothing", "BOOL", [1, 1], b"\x01"))
    assert "'max_tokens' is missing" in refused(PROMPT)
    assert "twice" in refused(PROMPT, MOST, MOST)
    assert "allowed: INT32" in refused(PROMPT, Sent("max_tokens", "INT64", [1, 1], b"\x01" * 8))
    assert "UTF-8" in refused(MOST, Sent("text_input", "BYTES", [1, 1], b"\x01\0\0\0\xff"))
    assert "its length in 4 bytes" in refused(MOST, Sent("text_input", "BYTES", [1, 1], b"\xff\xff\xff\xffa"))
    assert "has 2 elements; its shape says 1" in refused(MOST, Sent("text_input", "BYTES", [1, 1], bytes(8)))
    assert "5 bytes; its shape says 4" in refused(PROMPT, Sent("max_tokens", "INT32", [1, 1], bytes(5)))
    assert "same number of rows" in refused(
        PROMPT, Sent("max_tokens", "INT32", [2, 1], codec.encode("INT32", [1, 2]))
    )


@pytest.mark.parametrize(
    "shape",
    [[], [1], [1, 1, 1], [-1, 1], [1, -1], [0, 1], [MAX_ROWS + 1, 1], [2**62, 2**62], [1, 2], [1] * 100],
)
def test_impossible_shapes_are_refused(shape: list[int]) -> None:
    assert "shape" in refused(PROMPT, Sent("max_tokens", "INT32", shape, b"\0" * 4))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_must_be_finite(number: float) -> None:
    raw = struct.pack("<f", number)
    for data in (raw, [number]):
        assert "temperature" in refused(PROMPT, MOST, Sent("temperature", "FP32", [1, 1], data))
    assert "temperature" in refused(PROMPT, MOST, Sent("temperature", "FP32", [1, 1], [1e39]))


def test_a_number_in_json_must_fit_its_type() -> None:
    for wrong in (2**31, -(2**31) - 1, 1.0, True, "1", None, [1]):
        assert "max_tokens" in refused(PROMPT, Sent("max_tokens", "INT32", [1, 1], [wrong]))
    assert "stream" in refused(PROMPT, MOST, Sent("stream", "BOOL", [1, 1], [1]))
    assert "text_input" in refused(MOST, Sent("text_input", "BYTES", [1, 1], [1]))
    assert "text_input" in refused(MOST, Sent("text_input", "BYTES", [1, 1], ["\ud800"]))


def test_huge_tensors_are_refused_before_they_are_read() -> None:
    sent = Sent("INPUT_IDS", "INT32", [MAX_ROWS, 1 << 20], b"")
    with pytest.raises(InflightError, match="elements"):
        read_inputs(by_name(EMBEDDINGS.inputs), [sent])
