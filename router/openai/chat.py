"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.documents import expand
from router.openai.bodies import ChatBody, decode_chat
from router.openai.calls import chat_calls, chat_messages
from router.openai.dialects import ChatDialect
from router.openai.tools import described, offered, reader_for
from router.request.fair_pool import unless_left
from router.request.routes import Route
from router.request.text import TextJob

if TYPE_CHECKING:
    from router.content.documents.documents import Documents
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.routing.models import Registry


class ChatCompletions:
    def __init__(self, models: Registry, answers: Answers, documents: Documents) -> None:
        self._models = models
        self._answers = answers
        self._documents = documents

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        body = decode_chat(exchange.request.body)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        if model.template is None:
            message = f"The model '{model.name}' has no chat template; use /v1/completions with a prompt"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        for each in body.messages:
            if isinstance(each.content, list):  # only there can be files
                await self._answers.permits.foresee(record, model.name, 1)
                reading = expand(body.messages, record.caller, self._documents)
                messages = await unless_left(reading, exchange.on_disconnect)
                body = msgspec.structs.replace(body, messages=messages)
                break
        knows_tools = model.template.knows_tools
        tools = described(offered(body)) if knows_tools and body.tools else None
        prompt = model.template.render(chat_messages(body, knows_tools), tools)
        calls = chat_calls(body, prompt, record.request_id, record.caller.organisation.id, model.defaults)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = ChatDialect(
            record.request_id, model.name, include_usage=include_usage, service_tier=body.service_tier
        )
        reader = reader_for(body) if body.tools else None
        job = TextJob(exchange, record, model, calls, dialect, bool(body.stream), reader)
        await self._answers.answer(job, record, exchange.on_disconnect)


def routes(models: Registry, answers: Answers, documents: Documents) -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/chat/completions",
            ChatCompletions(models, answers, documents),
            "Answer a conversation",
            ChatBody,
            "ChatCompletion",
            streams=True,
            asks_model=True,
            request_id_prefix="chatcmpl",
        )
    ]
