"""Chats that came by another API than OpenAI's, from the body that they stand for to the last byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.calls import chat_reader, templated_calls
from router.chat.images import asked_images
from router.core.fair_pool import unless_left
from router.request.text import TextJob

if TYPE_CHECKING:
    from router.chat.bodies import ChatBody
    from router.chat.images import Images
    from router.core.images import Image
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.request.text import Dialect
    from router.routing.chat_template import ChatTemplate
    from router.routing.models import ServedModel


async def answer_chat(
    answers: Answers,
    images: Images,
    exchange: Exchange,
    record: Record,
    model: ServedModel,
    chat: ChatBody,
    dialect: Dialect,
) -> None:
    template, size_bytes = template_of(model), len(exchange.request.body)
    shown: tuple[Image, ...] = ()
    if asked_images(chat.messages, model):
        await answers.permits.foresee(record, model.name, 1)
        shown = await unless_left(images.read(chat.messages, model, record), exchange.on_disconnect)
    calls = await answers.aside.when_large(
        size_bytes, record.tenant, templated_calls, chat, record, model, template, shown
    )
    reader = chat_reader(chat, calls[0], template)
    job = TextJob(exchange, record, model, calls, dialect, bool(chat.stream), reader)
    await answers.answer(job, record, exchange.on_disconnect)


def template_of(model: ServedModel) -> ChatTemplate:
    if model.template is None:
        message = f"The model '{model.name}' has no chat template, so it takes no messages"
        raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
    return model.template
