from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request.web_pages import WebPages, host_name

NO_PAGES = WebPages()
CHATTY = WebPages(frozenset({"llm.example.org"}), frozenset({"https://chat.example.org"}))
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


def status(pages: WebPages, method: str, headers: dict[str, str], asks_for_keys: bool = False) -> int:
    refusal = pages.refusal(method, headers, asks_for_keys)
    return 200 if refusal is None else refusal[0]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "localhost.",
        "api.localhost:1",
        "127.0.0.1",
        "127.9.8.7:8080",
        "[::1]:80",
    ],
)
def test_every_name_of_loopback_is_served(host: str) -> None:
    assert status(NO_PAGES, "GET", {"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "0.0.0.0",
        "10.0.0.1",
        "[::]",
        "localhost@evil.example",
        "localhost:80:80",
        "localhost:x",
        "127.1",
        "local host",
        "[::1",
        "%31%32%37.0.0.1",
    ],
)
def test_without_keys_no_other_name_is_served(host: str) -> None:
    assert {status(NO_PAGES, method, {"host": host}) for method in METHODS} == {421}
    assert status(NO_PAGES, "GET", {"host": host}, asks_for_keys=True) == 200


def test_the_operator_names_further_hosts() -> None:
    assert status(CHATTY, "GET", {"host": "LLM.example.org:8080"}) == 200
    assert status(CHATTY, "GET", {"host": "other.example.org"}) == 421


def test_an_http_1_0_client_needs_no_host() -> None:
    assert status(NO_PAGES, "GET", {}) == 200


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:9999"},
        {"origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "something new"},
    ],
)
def test_pages_of_other_origins_change_nothing_and_without_keys_see_nothing(sent: dict[str, str]) -> None:
    headers = {"host": "localhost:8080", **sent}
    for method in METHODS:
        reads = method in ("GET", "HEAD", "OPTIONS")
        assert status(NO_PAGES, method, headers) == 403
        assert status(NO_PAGES, method, headers, asks_for_keys=True) == (200 if reads else 403)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"origin": "http://localhost:8080"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "https://chat.example.org", "sec-fetch-site": "cross-site"},
    ],
)
def test_programs_pages_of_this_origin_and_allowed_ones_are_served(sent: dict[str, str]) -> None:
    headers = {"host": "localhost:8080", **sent}
    for asks_for_keys in (False, True):
        assert {status(CHATTY, method, headers, asks_for_keys) for method in METHODS} == {200}


def test_only_allowed_origins_are_told_that_they_may_read() -> None:
    assert dict(CHATTY.answer_headers("https://chat.example.org"))["access-control-allow-origin"] == (
        "https://chat.example.org"
    )
    for origin in ("https://chat.example.org.evil.example", "http://chat.example.org", "null", "", None):
        assert not CHATTY.answer_headers(origin)
        assert not NO_PAGES.answer_headers(origin)


@given(st.text(max_size=40))
def test_whatever_the_host_is_only_names_of_loopback_are_called_localhost(host: str) -> None:
    if host_name(host) == "localhost":
        assert host.lower().split(":")[0].rstrip(".").endswith("localhost") or host.startswith(
            ("127.", "[::1]")
        )


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(METHODS))
def test_without_keys_a_page_is_served_only_at_an_own_name_and_origin(
    host: str, origin: str, method: str
) -> None:
    if host and status(NO_PAGES, method, {"host": host, "origin": origin}) == 200:
        assert host_name(host) == "localhost"
        assert origin.partition("://")[2] == host.lower()
