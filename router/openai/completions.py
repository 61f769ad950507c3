"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.openai.bodies import CompletionBody, decode_completion
from router.openai.calls import completion_calls
from router.openai.dialects import CompletionDialect
from router.request.answer import answer
from router.request.routes import Route

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.service import Service


class Completions:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        body = decode_completion(exchange.request.body)
        record.user = body.user or record.user
        model = self._service.registry.find(body.model, record)
        calls = completion_calls(body, record.request_id, record.tenant, model.defaults)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = CompletionDialect(
            record.request_id, model.name, include_usage=include_usage, service_tier=body.service_tier
        )
        await answer(exchange, record, self._service, model, calls, dialect, bool(body.stream))


def routes(service: Service) -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/completions",
            Completions(service),
            "Continue a text, or several",
            CompletionBody,
            "Completion",
            streams=True,
            request_id_prefix="cmpl",
        )
    ]
