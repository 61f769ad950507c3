"""JSON is decoded as msgspec does, however it has to be read, and refused where it is too much."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.bounded_json import (
    MOST_ITEMS,
    MOST_NAMES,
    MOST_NUMBERS,
    MOST_VALUES,
    TooMuchJson,
    decode_bounded,
    weigh,
)

ANY = msgspec.json.Decoder()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def count(value: Any) -> tuple[int, int]:
    """Lists, objects and texts; names."""
    if isinstance(value, str):
        return 1, 0
    if isinstance(value, list):
        inner = [count(each) for each in value]
        return 1 + sum(items for items, _ in inner), sum(names for _, names in inner)
    if isinstance(value, dict):
        inner = [count(each) for each in value.values()]
        return 1 + len(value) + sum(items for items, _ in inner), len(value) + sum(n for _, n in inner)
    return 0, 0


@given(values, st.booleans())
def test_what_is_in_texts_is_not_counted(value: Any, is_ascii: bool) -> None:
    found = weigh(json.dumps(value, ensure_ascii=is_ascii).encode())
    assert (found.items, found.names) == count(value)


@pytest.mark.parametrize("text", ['"\\', "\\\\", 'a\\"[', '\\"'])
@pytest.mark.parametrize("before", range(3))
def test_what_is_in_a_text_that_is_longer_than_a_slice_is_not_counted(text: str, before: int) -> None:
    value = ["x" * before + text * 30_000, {"a": 1}]
    found = weigh(json.dumps(value).encode())
    assert (found.items, found.names) == count(value)


@given(st.lists(values, min_size=1))
def test_whatever_has_many_slow_numbers_is_read_as_msgspec_reads_it(value: list[Any]) -> None:
    body = json.dumps([*value, *[1e300] * 1_000]).encode()
    assert decode_bounded(ANY, body) == ANY.decode(body)


@pytest.mark.parametrize("wrong", ["NaN", "-Infinity", '"\\ud800"', '{"\\udc00":1}', "01", "[1,]", "1 2"])
def test_what_msgspec_refuses_is_refused_beside_slow_numbers_too(wrong: str) -> None:
    body = f"[{'1e300,' * 1_000}{wrong}]".encode()
    with pytest.raises(msgspec.DecodeError):
        ANY.decode(body)
    with pytest.raises(msgspec.DecodeError):
        decode_bounded(ANY, body)


@pytest.mark.parametrize(
    ("element", "most", "what"),
    [
        ("[]", MOST_ITEMS, "lists, objects and texts or more"),
        ('"a"', MOST_ITEMS, "lists, objects and texts or more"),
        ("1", MOST_VALUES, "values"),
    ],
)
def test_as_much_as_is_allowed_is_decoded_and_more_is_refused(element: str, most: int, what: str) -> None:
    assert len(decode_bounded(ANY, f"[{','.join([element] * (most - 1))}]".encode())) == most - 1
    with pytest.raises(TooMuchJson, match=f"{what}; allowed: at most {most}$"):
        decode_bounded(ANY, f"[{','.join([element] * (most + 2))}]".encode())


def test_names_are_counted_apart_from_values() -> None:
    body = json.dumps({str(number): 1 for number in range(MOST_NAMES + 1)}).encode()
    with pytest.raises(TooMuchJson, match=f"names or more; allowed: at most {MOST_NAMES}$"):
        decode_bounded(ANY, body)


def test_many_numbers_are_read_where_they_are_usual() -> None:
    body = f"[{','.join(['12345'] * MOST_NUMBERS)}]".encode()
    assert decode_bounded(ANY, body, has_numbers=True) == [12345] * MOST_NUMBERS
    with pytest.raises(TooMuchJson, match=f"allowed: at most {MOST_NUMBERS}$"):
        decode_bounded(ANY, body[:-1] + b",1,1]", has_numbers=True)


def test_a_number_of_very_many_digits_is_refused() -> None:
    with pytest.raises(TooMuchJson, match="a number of more than 400 digits"):
        decode_bounded(ANY, b"[%b]" % b",".join([b"1" * 4_000] * 20))
