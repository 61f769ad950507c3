"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.answering import Service, answer
from router.api.bodies import decode_completion
from router.api.calls import completion_calls
from router.api.dialects import CompletionDialect

if TYPE_CHECKING:
    from router.http.exchange import Exchange
    from router.record import Record


class Completions:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        body = decode_completion(exchange.request.body)
        model = self._service.registry.find(body.model)
        calls = completion_calls(body, record.request_id, record.tenant, model.defaults)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = CompletionDialect(record.request_id, model.name, include_usage=include_usage)
        await answer(exchange, record, self._service, model, calls, dialect, bool(body.stream))
