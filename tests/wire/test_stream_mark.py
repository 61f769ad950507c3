from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.stream_mark import LANES, StreamMark


@given(st.integers(0, LANES - 1), st.integers(0, 2**19 - 1), st.booleans())
def test_a_mark_survives_as_a_negative_int32(lane: int, stream: int, is_last: bool) -> None:
    padding_id = StreamMark(lane, stream, is_last).to_padding_id()
    assert -(2**31) <= padding_id < 0
    assert StreamMark.from_padding_id(padding_id) == (lane, stream, is_last)


def test_stream_numbers_wrap_instead_of_overflowing() -> None:
    assert StreamMark(3, 2**19 + 7, False).to_padding_id() == StreamMark(3, 7, False).to_padding_id()


@given(st.integers(-(2**31), -1))
def test_any_padding_id_reads_as_some_mark(padding_id: int) -> None:
    """Another engine's padding must not break postprocessing."""
    assert 0 <= StreamMark.from_padding_id(padding_id).lane < LANES
