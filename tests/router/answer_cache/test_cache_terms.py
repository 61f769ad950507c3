from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.answer_cache.cache_terms import CacheTerms, read_terms

HOUR_S = 3600


@pytest.mark.parametrize(
    "header", ["", "no-store", "max-age=60, no-store", "private", "max-age=soon", "max-age"]
)
def test_a_request_that_asks_for_no_cache_has_none(header: str) -> None:
    assert read_terms(header, HOUR_S) is None


@pytest.mark.parametrize(
    ("header", "terms"),
    [
        ("max-age=60", CacheTerms(60)),
        ('Max-Age="60"', CacheTerms(60)),
        ("max-age=86400", CacheTerms(HOUR_S)),
        ("no-cache", CacheTerms(0)),
        ("max-age=60, no-cache", CacheTerms(0)),
        ("only-if-cached", CacheTerms(HOUR_S, True)),
        ("only-if-cached, max-age=5", CacheTerms(5, True)),
    ],
)
def test_directives_are_taken_as_http_has_them(header: str, terms: CacheTerms) -> None:
    assert read_terms(header, HOUR_S) == terms


@given(st.text())
def test_a_tenant_that_allows_none_has_none(header: str) -> None:
    assert read_terms(header, 0) is None


@given(st.text(), st.integers(1, 10**6))
def test_no_header_gets_more_than_its_tenant_allows(header: str, allowed_s: int) -> None:
    terms = read_terms(f"max-age={header}", allowed_s)
    assert terms is None or 0 <= terms.max_age_s <= allowed_s
