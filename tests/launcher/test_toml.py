"""What is written as TOML is read back the same."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.toml import to_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS | st.dates()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_document_survives_writing_and_reading(document: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(document)) == document


def test_a_list_of_tables_is_written_after_the_plain_keys() -> None:
    text = to_toml({"models": [{"name": "a"}, {"name": "b"}], "port": 1})
    assert text == 'port = 1\n\n[[models]]\nname = "a"\n\n[[models]]\nname = "b"\n'
