"""Which texts share a row, and which rows are computed together."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.embeddings.packing import SLICE_PLACES, WIDEST_SHARED, slices_of


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 8), st.sampled_from((0, 16, 2048)))
def test_slices_contain_every_text_once_and_stay_small(lengths: list[int], threads: int, fixed: int) -> None:
    slices = slices_of(lengths, SLICE_PLACES * threads, fixed)
    texts = [index for piece in slices for row in piece.rows for index in row]
    assert sorted(texts) == list(range(len(lengths)))
    for piece in slices:
        used = [sum(lengths[index] for index in row) for row in piece.rows]
        assert max(used) == piece.width
        assert piece.places <= max(SLICE_PLACES * threads, piece.width)
        wasted = piece.places - sum(used)
        assert wasted <= max(0.1 * piece.places + 1, fixed), "little is computed for nothing"
        for row, filled in zip(piece.rows, used, strict=True):
            assert len(row) == 1 or filled <= max(WIDEST_SHARED, lengths[row[0]])


def test_texts_of_one_length_have_rows_of_their_own() -> None:
    (piece,) = slices_of([12] * 32)
    assert piece.width == 12
    assert all(len(row) == 1 for row in piece.rows)


def test_short_texts_share_rows_and_a_long_one_does_not_widen_them() -> None:
    lengths = [256, *(4 + index % 23 for index in range(40))]
    slices = slices_of(lengths)
    assert [piece.width for piece in slices if (0,) in piece.rows] == [256]
    others = [piece for piece in slices if (0,) not in piece.rows]
    assert max(piece.width for piece in others) <= WIDEST_SHARED
    assert sum(len(piece.rows) for piece in others) < 20


def test_a_few_texts_of_many_lengths_are_one_slice_where_another_costs_more_than_padding() -> None:
    lengths = [20 + index * 173 % 481 for index in range(8)]
    assert len(slices_of(lengths, 16384, 2048)) == 1
    assert len(slices_of(lengths, 16384)) > 1


def test_no_text_makes_no_slice() -> None:
    assert slices_of([]) == []
