from __future__ import annotations

from router.http.inner_exchange import InnerExchange


def test_an_answer_is_collected_whole() -> None:
    exchange = InnerExchange("/v1/x", b"{}")
    exchange.respond(429, b'{"a":1}', [("Retry-After", "3"), ("content-type", "application/json")])
    assert (exchange.status, exchange.body) == (429, b'{"a":1}')
    assert exchange.headers["retry-after"] == "3"


async def test_an_answer_in_pieces_is_collected_without_framing() -> None:
    exchange = InnerExchange("/v1/x", b"{}")
    exchange.start(200, [])
    await exchange.send(b"one ")
    await exchange.send(b"two")
    exchange.end()
    assert exchange.body == b"one two"


def test_the_handler_learns_when_the_answer_is_no_longer_wanted() -> None:
    exchange = InnerExchange("/v1/x", b"{}")
    told: list[bool] = []
    exchange.on_disconnect(lambda: told.append(True))
    exchange.client_left()
    assert told == [True]
    assert exchange.gone
