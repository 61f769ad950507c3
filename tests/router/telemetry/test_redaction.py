from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.telemetry.redaction import redact
from tests.pace import patience
from tests.router.telemetry.planted import heart_of, planted
from tests.tiers import examples


@pytest.mark.parametrize(
    "around", ["{}", "it is {}, is it not?", "'{}'", "({})", '{{"text": "{}"}}', "a={};"]
)
def test_every_kind_of_secret_is_redacted_wherever_it_stands(around: str) -> None:
    for secret in planted():
        shown = redact(around.format(secret))
        assert heart_of(secret) not in shown, shown
        assert "[redacted " in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mail ann.lee+x@example.co.uk now", "mail [redacted email] now"),
        ("DE89 3704 0044 0532 0130 00 is mine", "[redacted iban] is mine"),
        ("4111 1111 1111 1111 12/27", "[redacted card] 12/27"),
        ("postgresql://ann:p@ss@db/x", "postgresql://ann:[redacted url password]@db/x"),
        ("Authorization: Basic YW5uOnBhc3M=", "Authorization: Basic [redacted token]"),
        ('{"api_key": "abcd1234"}', '{"api_key": "[redacted secret]"}'),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted private key]"),
        ("call 555-123-4567 or 030/901820", "call [redacted phone] or [redacted phone]"),
    ],
)
def test_the_text_around_a_secret_is_kept(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15 11:22:33,123 chatcmpl-0a1b2c3d4e5f6a7b8c9d0e1f status=200 total_ms=1234.5",
        "1794740000.123456 and 1794740000123456789",
        "the version is 1.2.3, the port 8080, the price 1,234,567.89",
        "4111 1111 1111 1112 is no card, GB82 WEST 1234 5698 7654 33 is no account",
        "max_tokens: expected `int` >= 1; prompt_tokens=7 completion_tokens=12",
        "https://example.org/path?x=1 and user@ and @user",
        "sk-short, ask-somebody-who-knows, eyJ, 10.1.2.3",
        "d41d8cd98f00b204e9800998ecf8427e",
    ],
)
def test_text_without_secrets_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_addresses_are_redacted_only_on_request() -> None:
    text = "from 10.1.2.3, 2001:db8::1 and ::ffff:10.0.0.1 to 999.1.1.1 at 11:22:33"
    assert redact(text) == text
    shown = redact(text, addresses=True)
    mark = "[redacted address]"
    assert shown == f"from {mark}, {mark} and {mark} to 999.1.1.1 at 11:22:33"


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(planted(36))), max_size=6).map(" ".join))
def test_redaction_is_idempotent(text: str) -> None:
    once = redact(text, addresses=True)
    assert redact(once, addresses=True) == once


_HOSTILE = [
    "a", "a@", "a.", "a@a.", "://a:", "://", "eyJ", "eyJaaaaa.", "-----BEGIN PRIVATE KEY-----", "1", "1 ",
    "+1", "(12)", "DE89", "4", "4111 ", "password=", "password", "password =  ", "bearer ", "1.1.", "a:", ":",
    "0123-", "+49 ", "sk-", "ik-aaaaaaaa-", "SG.aaaaaaaaaaaaaaaa.", " ", "é", "authorization: ",
]  # fmt: skip


@pytest.mark.parametrize("piece", _HOSTILE)
def test_redaction_takes_linear_time(piece: str) -> None:
    """A pattern that backtracks would take minutes; a slow machine needs a second."""
    began_s = time.process_time()
    redact(piece * (200_000 // len(piece)) + "@", addresses=True)
    assert time.process_time() - began_s < patience(10)
