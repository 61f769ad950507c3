from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from router.content.files.model import StoredFile, check_purpose, clean_name, lifetime_s

DAY_S = 86_400


@given(st.text())
def test_any_file_name_becomes_one_that_a_header_can_carry(name: str) -> None:
    cleaned = clean_name(name)
    assert 1 <= len(cleaned) <= 255
    assert cleaned.isprintable()
    assert not {"/", "\\"} & set(cleaned)
    shown = StoredFile("file-1", "org", cleaned, "batch", 1, 0.0).disposition()
    assert shown.isascii()
    assert shown.isprintable()
    assert shown.count('"') == 2


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("a.jsonl", "a.jsonl"), ("../../etc/passwd", "passwd"), ("C:\\x\\y.txt", "y.txt"), ("..", "file")],
)
def test_a_file_name_is_the_last_part_of_its_path(given_name: str, name: str) -> None:
    assert clean_name(given_name) == name


def test_a_purpose_that_is_not_supported_is_refused_with_the_list_of_those_that_are() -> None:
    with pytest.raises(InflightError, match="'evals' is not supported; allowed: assistants, batch, user_d"):
        check_purpose("evals")
    with pytest.raises(InflightError, match="'this' is not supported"):
        check_purpose("\n" * 100)


def test_files_of_batches_live_for_thirty_days_and_others_until_deleted() -> None:
    assert lifetime_s("batch", None, None) == 30 * DAY_S
    assert lifetime_s("user_data", None, None) is None
    assert lifetime_s("user_data", "created_at", "3600") == 3600


@pytest.mark.parametrize(
    ("anchor", "seconds", "message"),
    [
        ("now", "3600", "expected created_at"),
        (None, "3600", "expected created_at"),
        ("created_at", None, "a whole number of seconds"),
        ("created_at", "1e9", "a whole number of seconds"),
        ("created_at", "9" * 5000, "a whole number of seconds"),
        ("created_at", "3599", "expected 3600 to 2592000, got 3599"),
        ("created_at", "2592001", "expected 3600 to 2592000"),
    ],
)
def test_a_lifetime_that_is_not_allowed_is_refused(
    anchor: str | None, seconds: str | None, message: str
) -> None:
    with pytest.raises(InflightError, match=message):
        lifetime_s("batch", anchor, seconds)
