"""Against a server whose delays are known: what is measured is what it did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.results import RequestResult
from loadtest.tenants import Tenant
from loadtest.users.http import HttpAsker
from tests.fakes.openai_server import TEXT_MODEL, TimedApi, timed_api

BODY = {"model": TEXT_MODEL, "messages": [], "max_tokens": 6, "ignore_eos": True}


@pytest.fixture
def api() -> Iterator[TimedApi]:
    with timed_api(TimedApi(first_token_s=0.15, between_tokens_s=0.04)) as running:
        yield running


class Asking:
    """One user, and what it told."""

    def __init__(self, url: str, tenant: Tenant) -> None:
        self.told: list[RequestResult] = []
        self.asker = HttpAsker(url, tenant, 0.0, self.told.append)

    def chat(self) -> RequestResult:
        return self.asker.stream("chat", "/v1/chat/completions", BODY)[0]


@pytest.fixture
def asking(api: TimedApi) -> Iterator[Asking]:
    user = Asking(api.url, Tenant("acme", "ik-1", tier="interactive"))
    yield user
    user.asker.close()


def test_tokens_have_the_times_at_which_the_server_sent_them(asking: Asking) -> None:
    result, text = asking.asker.stream("chat", "/v1/chat/completions", BODY)
    assert text == " w0 w1 w2 w3 w4 w5"
    assert result.is_answered
    # Never sooner than they were sent; how much later is the machine's business.
    assert result.first_token_s is not None
    assert result.first_token_s >= 0.15
    assert sum(result.gaps_s) >= 5 * 0.04 - 0.03
    assert len(result.gaps_s) == 5
    assert result.ended_s is not None
    assert result.ended_s >= result.first_token_s + sum(result.gaps_s) - 1e-4
    assert (result.prompt_tokens, result.completion_tokens, result.release) == (5, 6, "1")
    assert asking.told == [result]


def test_completions_and_embeddings_are_read(asking: Asking) -> None:
    asker = asking.asker
    result, text = asker.stream("completions", "/v1/completions", {"prompt": "a", "max_tokens": 2})
    assert result.is_answered
    assert text == " w0 w1"
    embedded = asker.embed("/v1/embeddings", {"input": "a"})
    assert embedded.is_answered
    assert (embedded.prompt_tokens, embedded.first_token_s, embedded.tier) == (7, None, "standard")


def test_a_refusal_is_not_a_failure(api: TimedApi, asking: Asking) -> None:
    api.refuse = lambda number: True
    result = asking.chat()
    assert result.is_refused
    assert not result.has_failed
    assert result.retry_after_s == 0.15  # to the millisecond where the server says so


def test_a_stream_that_breaks_off_has_failed_and_the_next_one_works(api: TimedApi, asking: Asking) -> None:
    api.break_off = lambda number: number == 0
    broken = asking.chat()
    assert broken.has_failed
    assert broken.first_token_s is not None
    assert asking.chat().is_answered


def test_a_connection_closed_meanwhile_is_not_a_failure(asking: Asking) -> None:
    assert asking.chat().is_answered
    connection = asking.asker._connection
    assert connection is not None
    connection.sock.shutdown(2)
    assert asking.chat().is_answered


def test_an_address_without_a_listener_is_a_failure_with_a_reason() -> None:
    told: list[RequestResult] = []
    result = HttpAsker("http://127.0.0.1:9", Tenant(), 0.0, told.append).embed("/v1/embeddings", {})
    assert result.has_failed
    assert "refused" in result.error.lower()


def test_the_key_and_the_tier_of_the_tenant_are_sent(api: TimedApi, asking: Asking) -> None:
    result = asking.chat()
    assert api.keys == ["Bearer ik-1"]
    assert api.bodies[0]["service_tier"] == "priority"
    assert (result.tenant, result.tier) == ("acme", "interactive")


def test_a_request_abandoned_midway_is_recorded_as_left(asking: Asking) -> None:
    ticks = iter(range(1000))

    def stopped_while_reading() -> float:
        if next(ticks) == 3:
            raise SystemExit
        return 0.0

    asking.asker._clock = stopped_while_reading
    with pytest.raises(SystemExit):
        asking.chat()
    assert asking.told[0].has_left


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ValueError, match="for instance http"):
        HttpAsker("ftp://x", Tenant(), 0.0, lambda result: None)
