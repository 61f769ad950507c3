from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from python_backend.wire.errors import InflightError
from python_backend.wire.tensors import Tensor
from router.kserve.tensors import ELEMENT_BYTES, INTEGERS, LARGEST_FLOAT, checked, decode, encode, is_whole

NUMBERS = sorted({*INTEGERS, *LARGEST_FLOAT, "BOOL"})


def numbers(dtype: str) -> st.SearchStrategy[Any]:
    if dtype == "BOOL":
        return st.booleans()
    if dtype in INTEGERS:
        return st.integers(*INTEGERS[dtype])
    width: Any = 8 * ELEMENT_BYTES[dtype]
    return st.floats(width=width, allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.sampled_from(NUMBERS).flatmap(lambda dtype: st.tuples(st.just(dtype), st.lists(numbers(dtype)))))
def test_elements_are_written_as_tritons_clients_write_them(case: tuple[str, list[Any]]) -> None:
    dtype, elements = case
    raw = encode(dtype, elements)
    assert raw == np.array(elements, dtype=triton_to_np_dtype(dtype)).tobytes()
    assert decode(dtype, raw) == elements
    assert is_whole(dtype, len(elements), raw)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), min_size=1), st.binary(max_size=3))
def test_bytes_elements_are_valid_when_each_length_prefix_matches(elements: list[bytes], more: bytes) -> None:
    raw = encode("BYTES", elements)
    assert raw == serialize_byte_tensor(np.array(elements, dtype=np.object_)).item()
    assert is_whole("BYTES", len(elements), raw)
    assert not is_whole("BYTES", len(elements) + 1, raw)
    assert not is_whole("BYTES", len(elements), raw[:-1])
    assert is_whole("BYTES", len(elements), raw + more) == (not more)


@pytest.mark.parametrize("dtype", LARGEST_FLOAT)
def test_the_largest_number_of_a_type_is_what_numpy_says(dtype: str) -> None:
    assert np.finfo(triton_to_np_dtype(dtype)).max == LARGEST_FLOAT[dtype]


ANYTHING = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.sampled_from(["1", None, 10**400, 65504.0, -65505, 3.5e38])
)


@settings(deadline=None)
@given(st.sampled_from(sorted(LARGEST_FLOAT)), st.lists(ANYTHING, max_size=8))
def test_numbers_are_accepted_exactly_if_their_type_can_hold_each(dtype: str, elements: list[Any]) -> None:
    most = LARGEST_FLOAT[dtype]
    if all(type(element) in (int, float) and abs(element) <= most for element in elements):
        assert checked(Tensor("x", dtype, (-1,)), elements) is elements
    else:
        with pytest.raises(InflightError, match="allowed are numbers from"):
            checked(Tensor("x", dtype, (-1,)), elements)
