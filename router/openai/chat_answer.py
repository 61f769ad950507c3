"""Chats that came by another API than OpenAI's, from the body that they stand for to the last byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.openai.chat import chat_calls, chat_messages
from router.openai.tools import described, offered, reader_for
from router.request.text import TextJob

if TYPE_CHECKING:
    from router.core.generation import GenerationCall
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.openai.bodies import ChatBody
    from router.request.answer import Answers
    from router.request.text import Dialect
    from router.routing.models import ServedModel


async def answer_chat(
    answers: Answers, exchange: Exchange, record: Record, model: ServedModel, chat: ChatBody, dialect: Dialect
) -> None:
    size_bytes = len(exchange.request.body)
    calls = await answers.aside.when_large(size_bytes, record.tenant, _calls, chat, record, model)
    job = TextJob(exchange, record, model, calls, dialect, bool(chat.stream), reader_for(chat))
    await answers.answer(job, record, exchange.on_disconnect)


def _calls(chat: ChatBody, record: Record, model: ServedModel) -> list[GenerationCall]:
    return chat_calls(chat, prompt_of(chat, model), record.request_id, record.tenant, model.defaults)


def prompt_of(chat: ChatBody, model: ServedModel) -> str:
    if model.template is None:
        message = f"The model '{model.name}' has no chat template, and takes no messages"
        raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
    knows_tools = model.template.knows_tools
    tools = described(offered(chat)) if knows_tools else None
    return model.template.render(chat_messages(chat, knows_tools), tools)
