from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from python_backend.wire import codec

NUMBERS = {
    "BOOL": st.booleans(),
    "UINT8": st.integers(0, 255),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP16": st.floats(width=16, allow_nan=False),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@given(data=st.data())
def test_numbers_are_laid_out_as_tritons_client_does(dtype: str, data: st.DataObject) -> None:
    values: list[Any] = data.draw(st.lists(NUMBERS[dtype], max_size=8))
    raw = codec.encode(dtype, values)
    assert raw == np.asarray(values, dtype=triton_to_np_dtype(dtype)).tobytes()
    assert codec.decode(dtype, raw) == values


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
def test_bytes_are_laid_out_as_tritons_client_does(values: list[bytes]) -> None:
    raw = codec.encode("BYTES", values)
    assert raw == serialize_byte_tensor(np.asarray(values, dtype=np.object_)).item()
    assert codec.decode("BYTES", raw) == list(deserialize_bytes_tensor(raw)) == values


def test_text_is_encoded_as_utf8() -> None:
    assert codec.decode("BYTES", codec.encode("BYTES", ["é"])) == ["é".encode()]


def test_a_bytes_element_that_runs_past_its_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="past the end"):
        codec.decode("BYTES", b"\xff\x00\x00\x00ab")
