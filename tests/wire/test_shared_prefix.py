"""What a router says of a prompt's beginning, and what the engine makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.shared_prefix import describe, shared_tokens

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40)


@given(ids, ids)
def test_a_prompt_that_begins_with_the_described_tokens_shares_all_of_them(
    beginning: list[int], rest: list[int]
) -> None:
    assert shared_tokens(describe(beginning), beginning + rest) == len(beginning)


@given(ids, st.data())
def test_a_prompt_that_differs_in_one_token_shares_nothing(beginning: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(beginning) - 1))
    other = [*beginning[:place], beginning[place] ^ 1, *beginning[place + 1 :], 5]
    assert shared_tokens(describe(beginning), other) == 0
    assert shared_tokens(describe([*beginning, 1]), beginning) == 0


@pytest.mark.parametrize(
    "description", ["", ":", "3", "3:", "-1:ab", "0:ab", "x:y", "9" * 4000 + ":a", "\u0663:a"]
)
def test_a_description_that_makes_no_sense_shares_nothing(description: str) -> None:
    assert shared_tokens(description, [1, 2, 3]) == 0
