"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's API over the same path as any other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from router.anthropic.bodies import CountBody, MessagesBody, read_count, read_messages
from router.anthropic.dialect import MessagesDialect
from router.chat.answer import answer_chat, template_of
from router.chat.calls import chat_prompt
from router.chat.images import image_tokens
from router.core.actions import Action
from router.core.fair_pool import unless_left
from router.core.generation import unmarked
from router.request.errors import respond_json
from router.request.identity import check_model_allowed
from router.request.routes import Route

if TYPE_CHECKING:
    from router.chat.images import Images
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.request.token_counting import Tokenizers
    from router.routing.models import Registry


class Messages:
    def __init__(self, models: Registry, answers: Answers, images: Images, tokenizers: Tokenizers) -> None:
        self._models = models
        self._answers = answers
        self._images = images
        self._tokenizers = tokenizers

    async def create(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        chat = await aside.when_large(len(raw), record.tenant, read_messages, raw)
        record.user = chat.user or record.user
        model = self._models.find(chat.model, record)
        dialect = MessagesDialect(record, model.name, shows_thoughts=chat.reasoning_effort != "none")
        await answer_chat(self._answers, self._images, exchange, record, model, chat, dialect)

    async def count(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        chat = await aside.when_large(len(raw), record.tenant, read_count, raw)
        model = self._models.find(chat.model, record)
        check_model_allowed(record.caller, model.name)
        seen = image_tokens(chat.messages, model)
        rendering = (chat_prompt, chat, template_of(model))
        prompt = await aside.when_large(len(raw), record.tenant, *rendering)
        counting = self._tokenizers.count(record.tenant, model.name, unmarked(prompt)[0])
        tokens = await unless_left(counting, exchange.on_disconnect)
        respond_json(exchange, record, {"input_tokens": tokens + seen})


def routes(models: Registry, answers: Answers, images: Images, tokenizers: Tokenizers) -> list[Route]:
    api = Messages(models, answers, images, tokenizers)
    post = partial(
        Route, "POST", request_id_prefix="msg", request_id_header="request-id", action=Action.INFERENCE_RUN
    )
    return [
        post(
            "/v1/messages",
            api.create,
            "Answer a conversation, in Anthropic's API",
            MessagesBody,
            "AnthropicMessage",
            streams=True,
            asks_model=True,
        ),
        post(
            "/v1/messages/count_tokens",
            api.count,
            "Count the tokens of a message's prompt",
            CountBody,
            "AnthropicTokens",
        ),
    ]
