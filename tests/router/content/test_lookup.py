"""Ids that may be looked up, and those that never reach the store."""

from __future__ import annotations

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import new_id
from router.content.lookup import checked_id


@pytest.mark.parametrize("given", ["", "a\0b", "ü", "x" * 101, "a/b", "1; DROP", "\ud800"])
def test_a_malformed_id_is_not_found_without_a_lookup(given: str) -> None:
    with pytest.raises(InflightError) as caught:
        checked_id("Response", given, "after")
    assert (caught.value.kind, caught.value.param) == (ErrorKind.NOT_FOUND, "after")
    assert caught.value.message.isprintable()


def test_ids_of_ours_may_be_looked_up() -> None:
    made = new_id("conv")
    assert checked_id("Conversation", made) == made
