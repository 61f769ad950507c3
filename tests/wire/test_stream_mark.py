from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.stream_mark import LANES, StreamMark, following


@given(st.integers(0, LANES - 1), st.integers(0, 2**16 - 1), st.integers(0, 7), st.booleans())
def test_a_mark_survives_as_a_negative_int32(lane: int, stream: int, turn: int, is_last: bool) -> None:
    padding_id = StreamMark(lane, stream, turn, is_last).to_padding_id()
    assert -(2**31) <= padding_id < -1
    assert StreamMark.from_padding_id(padding_id) == (lane, stream, turn, is_last)


def test_only_the_first_response_has_the_first_turn() -> None:
    turns = [0]
    for _ in range(20):
        turns.append(following(turns[-1]))
    assert turns[:9] == [0, 1, 2, 3, 4, 5, 6, 7, 1]
    assert 0 not in turns[1:]


def test_stream_numbers_wrap_instead_of_overflowing() -> None:
    assert StreamMark(3, 2**16 + 7).to_padding_id() == StreamMark(3, 7).to_padding_id()


@given(st.integers(-1, 2**31 - 1))
def test_the_padding_of_another_engine_is_no_mark(padding_id: int) -> None:
    assert StreamMark.from_padding_id(padding_id) is None


@given(st.integers(-(2**31), -2))
def test_any_other_padding_id_reads_as_some_mark(padding_id: int) -> None:
    mark = StreamMark.from_padding_id(padding_id)
    assert mark is not None
    assert 0 <= mark.lane < LANES
