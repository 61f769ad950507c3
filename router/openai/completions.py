"""POST /v1/completions."""

from __future__ import annotations

from router.core.record import Record
from router.http.exchange import Exchange
from router.openai.bodies import CompletionBody, decode_completion
from router.openai.calls import completion_calls
from router.openai.dialects import CompletionDialect
from router.request.answer import Answers
from router.request.aside import LARGE_BYTES
from router.request.routes import Route
from router.request.text import TextJob
from router.routing.models import Registry


class Completions:
    def __init__(self, models: Registry, answers: Answers) -> None:
        self._models = models
        self._answers = answers

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside, tenant = exchange.request.body, self._answers.aside, record.tenant
        is_large = len(raw) > LARGE_BYTES
        body = await aside.run(tenant, decode_completion, raw) if is_large else decode_completion(raw)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        asked = (body, record.request_id, tenant, model.defaults)
        calls = await aside.run(tenant, completion_calls, *asked) if is_large else completion_calls(*asked)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = CompletionDialect(
            record.request_id, model.name, include_usage=include_usage, service_tier=body.service_tier
        )
        job = TextJob(exchange, record, model, calls, dialect, bool(body.stream))
        await self._answers.answer(job, record, exchange.on_disconnect)


def routes(models: Registry, answers: Answers) -> list[Route]:
    return [
        Route("POST", "/v1/completions", Completions(models, answers), "Continue a text, or several",
              CompletionBody, "Completion", streams=True, request_id_prefix="cmpl")
    ]  # fmt: skip
