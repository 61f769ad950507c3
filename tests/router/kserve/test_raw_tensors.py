from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from python_backend.wire.tensors import Tensor
from router.kserve.tensors import ELEMENT_BYTES, RawTensor, Sent, by_name, encode, is_whole, read_tensors
from tests.router.kserve.asking import is_clear, outcome
from tests.router.kserve.test_elements import NUMBERS, numbers
from tests.tiers import examples

DTYPES = [*ELEMENT_BYTES, "BYTES"]
DIMS = st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=3).map(tuple)
SIZES = st.one_of(st.integers(-2, 4), st.integers(-(2**63), 2**63 - 1))
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
ONE = by_name([Tensor("X", "FP32", (2,)), Tensor("MORE", "BYTES", (1,), optional=True)])
ROW = Sent("X", "FP32", [1, 2], bytes(8))


@st.composite
def good(draw: st.DrawFn) -> tuple[Tensor, int, Sent, bytes]:
    """An input as its config wants it, as bytes or as elements, and the bytes that are to be sent on."""
    tensor = Tensor("X", draw(st.sampled_from(DTYPES)), draw(DIMS))
    max_batch_size = draw(st.sampled_from([0, 1, 4]))
    shape = [draw(st.integers(0, 3)) if size < 0 else size for size in tensor.dims]
    if max_batch_size:
        shape = [draw(st.integers(1, max_batch_size)), *shape]
    count = math.prod(shape)
    if tensor.dtype in NUMBERS or tensor.dtype == "BYTES":
        element = st.binary(max_size=4) if tensor.dtype == "BYTES" else numbers(tensor.dtype)
        elements = draw(st.lists(element, min_size=count, max_size=count))
        raw = encode(tensor.dtype, elements)
        data: Any = raw if draw(st.booleans()) else elements
    else:
        data = raw = draw(st.binary(min_size=2 * count, max_size=2 * count))
    return tensor, max_batch_size, Sent("X", tensor.dtype, shape, data), raw


@settings(deadline=None)
@given(good())
def test_tensors_that_the_config_allows_are_sent_on_as_they_came(
    case: tuple[Tensor, int, Sent, bytes],
) -> None:
    tensor, max_batch_size, sent, raw = case
    found = read_tensors({"X": tensor}, max_batch_size, [sent])
    assert found == {"X": RawTensor(tensor.dtype, tuple(sent.shape), raw)}


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(DTYPES),
    DIMS,
    st.sampled_from([0, 1, 4]),
    st.lists(
        st.builds(
            Sent,
            st.sampled_from(["X", "X", "Y", "\0"]),
            st.sampled_from([*DTYPES, "STRING", ""]),
            st.lists(SIZES, max_size=5),
            st.one_of(st.binary(max_size=24), st.lists(ANYTHING, max_size=6)),
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_any_tensors_fit_the_config_or_are_refused_clearly(
    dtype: str, dims: tuple[int, ...], max_batch_size: int, inputs: list[Sent], right_type: bool
) -> None:
    if right_type:
        inputs = [Sent(sent.name, dtype, sent.shape, sent.data) for sent in inputs]
    known = {"X": Tensor("X", dtype, dims)}
    found = outcome(lambda: read_tensors(known, max_batch_size, inputs))
    assert is_clear(found)
    if not isinstance(found, InflightError):
        (tensor,) = found.values()
        rows, own = tensor.shape[:1], tensor.shape[1:]
        if not max_batch_size:
            rows, own = (1,), tensor.shape
        assert 1 <= rows[0] <= max(max_batch_size, 1)
        assert all(want in (-1, size) for want, size in zip(dims, own, strict=True))
        assert is_whole(dtype, math.prod(tensor.shape), tensor.raw)


def test_inputs_are_sent_in_the_order_of_the_config_and_optional_ones_may_be_missing() -> None:
    title = Sent("MORE", "BYTES", [1, 1], ["a"])
    assert list(read_tensors(ONE, 4, [title, ROW])) == ["X", "MORE"]
    assert list(read_tensors(ONE, 4, [ROW])) == ["X"]


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([], "'X' is missing"),
        ([ROW, ROW], "twice"),
        ([ROW, Sent("Z", "FP32", [1, 2], bytes(8))], "input 'Z' does not exist; allowed are X, MORE"),
        ([Sent("X", "FP64", [1, 2], bytes(16))], "has type FP64; allowed: FP32"),
        ([Sent("X", "FP32", [2], bytes(8))], r"has shape \[2\]; allowed: \[-1, 2\], the first number being"),
        ([Sent("X", "FP32", [5, 2], bytes(40))], "rows, 1 to 4"),
        ([Sent("X", "FP32", [0, 2], b"")], "rows, 1 to 4"),
        ([Sent("X", "FP32", [1, 2], bytes(7))], "has 7 bytes; its shape says 8"),
        ([Sent("X", "FP32", [1, 2], [1.0])], "has 1 elements; its shape says 2"),
        ([Sent("X", "FP32", [1, 2], [1.0, 1e39])], "allowed are numbers from"),
        ([Sent("X", "FP32", [1, 2], [1.0, "2"])], "allowed are numbers from"),
        ([ROW, Sent("MORE", "BYTES", [1, 1], b"\xff\xff\xff\xffa")], "its shape says 1 elements, each its"),
        ([ROW, Sent("MORE", "BYTES", [1, 1], [7])], "allowed are texts"),
        ([ROW, Sent("MORE", "BYTES", [1, 1], ["\ud800"])], "UTF-8"),
        ([ROW, Sent("MORE", "BYTES", [2, 1], ["a", "b"])], "the same number of rows"),
    ],
)
def test_a_tensor_error_names_its_cause(inputs: list[Sent], why: str) -> None:
    with pytest.raises(InflightError, match=why):
        read_tensors(ONE, 4, inputs)


def test_bool_and_bf16_tensors_have_their_own_rules() -> None:
    flags = {"X": Tensor("X", "BOOL", (2,))}
    with pytest.raises(InflightError, match="the bytes 0 and 1"):
        read_tensors(flags, 0, [Sent("X", "BOOL", [2], b"\x01\x02")])
    halves = {"X": Tensor("X", "BF16", (1,))}
    with pytest.raises(InflightError, match="BF16 is sent as bytes"):
        read_tensors(halves, 0, [Sent("X", "BF16", [1], [1.0])])


def test_a_dimension_of_0_hides_no_overflow() -> None:
    free = {"X": Tensor("X", "FP32", (-1, -1))}
    assert read_tensors(free, 0, [Sent("X", "FP32", [0, 7], b"")])
    with pytest.raises(InflightError, match="has shape"):
        read_tensors(free, 0, [Sent("X", "FP32", [0, 2**62], b"")])
