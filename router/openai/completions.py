"""POST /v1/completions."""

from __future__ import annotations

from router.core.record import Record
from router.http.exchange import Exchange
from router.openai.bodies import CompletionBody, decode_completion
from router.openai.calls import completion_calls
from router.openai.dialects import CompletionDialect
from router.request.answer import Answers
from router.request.routes import Route
from router.request.text import TextJob
from router.routing.models import Registry


class Completions:
    def __init__(self, models: Registry, answers: Answers) -> None:
        self._models = models
        self._answers = answers

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        body = decode_completion(exchange.request.body)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        calls = completion_calls(body, record.request_id, record.tenant, model.defaults)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = CompletionDialect(
            record.request_id, model.name, include_usage=include_usage, service_tier=body.service_tier
        )
        job = TextJob(exchange, record, model, calls, dialect, bool(body.stream))
        await self._answers.answer(job, record, exchange.on_disconnect)


def routes(models: Registry, answers: Answers) -> list[Route]:
    return [
        Route("POST", "/v1/completions", Completions(models, answers), "Continue a text, or several",
              CompletionBody, "Completion", streams=True, request_id_prefix="cmpl", asks_model=True)
    ]  # fmt: skip
