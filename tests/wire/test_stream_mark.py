from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.stream_mark import StreamMark


@given(st.integers(0, 2**29 - 1), st.booleans())
def test_a_mark_survives_as_a_negative_int32(stream: int, is_last: bool) -> None:
    padding_id = StreamMark(stream, is_last).to_padding_id()
    assert -(2**31) <= padding_id < 0
    assert StreamMark.from_padding_id(padding_id) == (stream, is_last)


def test_stream_numbers_wrap_instead_of_overflowing() -> None:
    assert StreamMark(2**29 + 7, False).to_padding_id() == StreamMark(7, False).to_padding_id()
