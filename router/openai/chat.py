"""POST /v1/chat/completions."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import OPTIONS_NEUTRAL, ChatBody, check_options, refuse_unsupported
from router.chat.calls import chat_reader, templated_calls
from router.chat.tool_bodies import check_tools
from router.content.documents.documents import expand
from router.core.actions import Action
from router.core.fair_pool import unless_left
from router.openai.dialects import ChatDialect, TokenIds
from router.openai.held_exchange import HeldExchange
from router.openai.stored_chats import ChatKeeper, StoredDialect
from router.request.aside import LARGE_BYTES
from router.request.decoding import decode, invalid, takes_long
from router.request.routes import Route
from router.request.text import TextJob

if TYPE_CHECKING:
    from router.chat.images import Images
    from router.content.documents.documents import Documents
    from router.core.images import Image
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.routing.models import Registry

# Values that ask for what the router does anyway.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **OPTIONS_NEUTRAL,
    "add_special_tokens": (False,),
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "web_search_options": (),
}
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "refusal": ("",),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
}

# Few bodies and messages have any of these.
_unusual_in_chat = attrgetter(*NEUTRAL)
_USUAL_CHAT = (None,) * len(NEUTRAL)
_unusual_in_message = attrgetter(*MESSAGE_NEUTRAL)
_USUAL_MESSAGE = (None,) * len(MESSAGE_NEUTRAL)
_chat = msgspec.json.Decoder(ChatBody)


def decode_chat(body: bytes) -> ChatBody:
    decoded = decode(_chat, body)
    if _unusual_in_chat(decoded) != _USUAL_CHAT:
        refuse_unsupported(decoded, NEUTRAL, "")
    if decoded.stream_options is not None or decoded.logit_bias:
        check_options(decoded)
    for index, message in enumerate(decoded.messages):
        if _unusual_in_message(message) != _USUAL_MESSAGE:
            refuse_unsupported(message, MESSAGE_NEUTRAL, f"messages[{index}].")
    if decoded.tools or decoded.tool_choice:
        check_tools(decoded.tools, decoded.tool_choice)
    if decoded.top_logprobs and not decoded.logprobs:
        raise invalid("top_logprobs: is only allowed when logprobs is true", "top_logprobs")
    asked = decoded.response_format
    if asked is not None and (asked.type == "json_schema") != (asked.json_schema is not None):
        raise invalid(
            "response_format: json_schema is only allowed with type json_schema",
            "response_format.json_schema",
        )
    return decoded


class ChatCompletions:
    def __init__(
        self, models: Registry, answers: Answers, documents: Documents, images: Images, keeper: ChatKeeper
    ) -> None:
        self._models = models
        self._answers = answers
        self._documents = documents
        self._images = images
        self._keeper = keeper

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        is_long = len(raw) > LARGE_BYTES
        is_large = is_long and takes_long(raw)
        body = await aside.run(record.tenant, decode_chat, raw) if is_large else decode_chat(raw)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        if model.template is None:
            message = f"The model '{model.name}' has no chat template; use /v1/completions with a prompt"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        if body.store:
            self._keeper.check(exchange, record)
        images: tuple[Image, ...] = ()
        for each in body.messages:
            if isinstance(each.content, list):  # only there can be files and images
                await self._answers.permits.foresee(record, model.name, 1)
                looking = self._images.read(body.messages, model, record)
                images = await unless_left(looking, exchange.on_disconnect)
                reading = expand(body.messages, record.caller, self._documents)
                messages = await unless_left(reading, exchange.on_disconnect)
                is_large = is_large or messages is not body.messages  # a few bytes may name long files
                body = msgspec.structs.replace(body, messages=messages)
                break
        is_large = is_large or (is_long and not model.template.renders_quickly(body.messages))
        asked = (body, record, model, model.template, images)
        if is_large:
            calls = await aside.run(record.tenant, templated_calls, *asked)
        else:
            calls = templated_calls(*asked)
        options = body.stream_options
        dialect = (StoredDialect if body.store else ChatDialect)(
            record.request_id,
            model.name,
            record.began_s,
            include_usage=options is not None and bool(options.include_usage),
            service_tier=body.service_tier,
        )
        may_be_read = body.tools or model.template.thinks
        reader = chat_reader(body, calls[0], model.template) if may_be_read else None
        answered = HeldExchange(exchange) if body.store else exchange
        job = TextJob(answered, record, model, calls, dialect, bool(body.stream), reader)
        if options is not None and options.continuous_usage_stats:
            dialect.running = job.choices
        if body.return_token_ids:
            dialect.token_ids = TokenIds(job.choices)
        await self._answers.answer(job, record, exchange.on_disconnect)
        if isinstance(dialect, StoredDialect) and isinstance(answered, HeldExchange):
            await self._keeper.keep(exchange, answered, record, body, dialect)


def routes(
    models: Registry, answers: Answers, documents: Documents, images: Images, keeper: ChatKeeper
) -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/chat/completions",
            ChatCompletions(models, answers, documents, images, keeper),
            "Answer a conversation",
            ChatBody,
            "ChatCompletion",
            streams=True,
            asks_model=True,
            request_id_prefix="chatcmpl",
            action=Action.INFERENCE_RUN,
        )
    ]
