"""Runs one line as a request of its owner, through the endpoint that a client would call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from python_backend.wire.tiers import Tier
from router.content.batches.claims import Answer, Claim, Returned
from router.content.batches.decisions import Again, verdict
from router.content.batches.rows import Response, answered_line
from router.core.record import Record
from router.core.tenant import Caller
from router.http.inner_exchange import InnerExchange
from router.request.error_shapes import error_body

# Answers a request from inside for a caller who is known already, and gives the record of it.
Call = Callable[[InnerExchange, Caller, Tier], Awaitable[Record]]
_KEY_GONE = "the API key that made this batch is no longer valid"


class _Error(msgspec.Struct):
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class LineRun:
    """One line under way; `cut` ends it early, and then it is given back."""

    def __init__(self, claim: Claim, call: Call, caller: Caller | None) -> None:
        self.claim = claim
        self.wait_s = 0.0  # how long its organisation should be left alone
        self._call = call
        self._caller = caller
        self._exchange = InnerExchange(claim.batch.endpoint, claim.body)

    def cut(self) -> None:
        """One that is answered stays so: it is paid for, and its request is only tidying up."""
        if not self._exchange.ended:
            self._exchange.client_left()

    async def result(self) -> Answer | Returned:
        if self._caller is None:
            return self._answer(Response(401, "", _error(401, _KEY_GONE, "invalid_api_key")))
        record = await self._call(self._exchange, self._caller, Tier.BATCH)
        exchange = self._exchange
        if exchange.gone:
            return Returned(self.claim, self.claim.attempts)
        again = verdict(exchange.status, _code(exchange), _seconds(exchange.headers), self.claim.attempts)
        if again is not None:
            return self._returned(again)
        response = Response(exchange.status, record.request_id, msgspec.Raw(exchange.body))
        return self._answer(response, record)

    def failed(self) -> Answer:
        """For a defect of ours: a line is not tried again and again because of one."""
        return self._answer(Response(500, "", _error(500, "the server failed to answer", "internal_error")))

    def _returned(self, again: Again) -> Returned:
        self.wait_s = again.wait_s
        return Returned(self.claim, self.claim.attempts + int(again.is_attempt))

    def _answer(self, response: Response, record: Record | None = None) -> Answer:
        claim = self.claim
        text = answered_line(claim.batch.id, claim.number, claim.custom_id, response)
        succeeded = response.status < 400
        if record is None:
            return Answer(claim, succeeded, text)
        tokens = (record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        return Answer(claim, succeeded, text, *tokens)


def _error(status: int, message: str, code: str) -> msgspec.Raw:
    return msgspec.Raw(error_body(status, message, code))


def _code(exchange: InnerExchange) -> str | None:
    if exchange.status < 400:
        return None
    try:
        return msgspec.json.decode(exchange.body, type=_ErrorBody).error.code
    except msgspec.DecodeError:
        return None


def _seconds(headers: dict[str, str]) -> float | None:
    given_ms = headers.get("retry-after-ms")
    if given_ms is not None:
        return int(given_ms) / 1000
    given_s = headers.get("retry-after")
    return None if given_s is None else float(given_s)
