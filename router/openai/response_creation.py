"""POST /v1/responses: an answer that knows what was said before, and is remembered itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import ChatBody
from router.chat.calls import chat_calls, chat_prompt, chat_reader, showing
from router.chat.images import Images, asked_images
from router.content.conversations.conversation_store import (
    MOST_HISTORY_BYTES,
    MOST_HISTORY_ITEMS,
    ConversationStore,
)
from router.content.conversations.cutter import ContextLengths, Cut, Cutter, Past
from router.content.conversations.items import Item, as_messages, check_results, new_id, read_items
from router.content.conversations.response_store import EndedResponse, ResponseStore
from router.content.documents.documents import Documents
from router.content.lookup import Owner
from router.content.storage_quota import StorageQuota
from router.core.fair_pool import unless_left
from router.core.record import Record
from router.http.exchange import Exchange
from router.openai.held_exchange import HeldExchange
from router.openai.response_bodies import (
    InputTokensBody,
    ResponseBody,
    as_chat,
    in_response_words,
    response_head,
)
from router.openai.response_dialect import ResponsesDialect
from router.openai.response_tools import namespaces
from router.request.answer import Answers
from router.request.aside import LARGE_BYTES
from router.request.errors import respond_json
from router.request.text import TextJob
from router.request.token_counting import Tokenizers
from router.routing.chat_template import ChatTemplate
from router.routing.models import Registry, ServedModel

log = logging.getLogger(__name__)

_ATTEMPTS = 4
# A history that must not be cut is not even read when it has more items than this.
_MOST_WHOLE_ITEMS = 10_000
_MANY_ITEMS = 200  # are a prompt that takes its time to write


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a response, with what was said before it."""

    id: str
    created_s: float
    body: ResponseBody
    model: ServedModel
    template: ChatTemplate
    owner: Owner
    past: Past

    def dialect(self, request_id: str) -> ResponsesDialect:
        head = response_head(self.body, self.id, int(self.created_s), self.model)
        known = namespaces(self.body.tools) if self.body.tools else None
        asked = (request_id, self.model.name, self.created_s)
        return ResponsesDialect(*asked, head, bool(self.body.background), known)

    def chat(self, items: Sequence[Item]) -> ChatBody:
        return as_chat(self.body, as_messages(items, self.body.instructions))

    def prompt(self, items: Sequence[Item]) -> str:
        return chat_prompt(self.chat(items), self.template)


@dataclass(frozen=True, slots=True)
class Answered:
    """A response whose text has ended, and whose end nobody was told of yet."""

    cut: Cut
    dialect: ResponsesDialect
    exchange: HeldExchange


class ResponseCreation:
    def __init__(
        self,
        models: Registry,
        answers: Answers,
        documents: Documents,
        images: Images,
        responses: ResponseStore,
        conversations: ConversationStore,
        tokenizers: Tokenizers,
        quota: StorageQuota,
    ) -> None:
        self._models = models
        self._answers = answers
        self._documents = documents
        self._images = images
        self._cutter = Cutter(tokenizers, ContextLengths())
        self._quota = quota
        self._responses = responses
        self._conversations = conversations

    async def understand(
        self, exchange: Exchange, record: Record, decode: Callable[[bytes], ResponseBody]
    ) -> Asked:
        raw = exchange.request.body
        if len(raw) > LARGE_BYTES:
            body = await self._answers.aside.run(record.tenant, decode, raw)
        else:
            body = decode(raw)
        return await unless_left(self._understand(body, record), exchange.on_disconnect)

    async def make(self, exchange: Exchange, record: Record, asked: Asked) -> None:
        answered = await self._answer(exchange, record, asked)
        await self._finish(exchange, record, asked, answered)

    async def _understand(self, body: ResponseBody, record: Record) -> Asked:
        caller = record.caller
        record.user = body.user or record.user
        record.conversation = body.conversation_id or record.conversation
        model = self._models.find(body.model, record)
        if model.template is None:
            message = f"The model '{model.name}' has no chat template; use /v1/completions with a prompt"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        await self._answers.permits.foresee(record, model.name, 1)
        if body.store or body.background or body.conversation is not None:
            self._quota.check(record.tenant, len(body.input) if isinstance(body.input, str) else 0)
        owner = Owner.of(caller)
        history = await self._history(body, owner)
        given = [] if isinstance(body, InputTokensBody) and not body.input else body.input
        new = await read_items(given, "input", caller, self._documents)
        check_results(history, new, "input")
        try:
            asked_images(as_messages(new, None), model)
        except InflightError as error:
            raise in_response_words(error) from None
        past = Past(history, new)
        return Asked(new_id("resp"), record.began_s, body, model, model.template, owner, past)

    async def _history(self, body: ResponseBody, owner: Owner) -> list[Item]:
        if body.previous_response_id is not None:
            where = "previous_response_id"
            history = await self._responses.history(owner, body.previous_response_id)
        elif body.conversation_id is not None:
            where = "conversation"
            most = MOST_HISTORY_ITEMS if body.cuts_history else _MOST_WHOLE_ITEMS
            history = await self._conversations.history(owner, body.conversation_id, most)
        else:
            return []
        if not history.is_whole and not body.cuts_history:
            limit = f"{_MOST_WHOLE_ITEMS} items or {MOST_HISTORY_BYTES} bytes"
            message = f"the conversation so far has more than {limit}; set truncation to auto"
            raise InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, message, where)
        return history.items

    async def _answer(self, exchange: Exchange, record: Record, asked: Asked) -> Answered:
        """Where the engine finds a prompt too long, as it may where tokens are estimated, again with less."""
        room_tokens: int | None = None
        attempt = 1
        while True:
            preparing = self.prepare(exchange, record, asked, room_tokens)
            answered = await unless_left(preparing, exchange.on_disconnect)
            try:
                await self._generate(answered, record, asked)
                return answered
            except InflightError as error:
                is_too_long = error.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED
                if not (is_too_long and asked.body.cuts_history and attempt < _ATTEMPTS):
                    raise
                room_tokens = await self._cutter.lessened(record.tenant, asked.model, answered.cut, error)
            # Usage is recorded by this id, of each attempt its own.
            record.request_id = f"{record.request_id.partition('.')[0]}.{attempt}"
            attempt += 1

    async def prepare(
        self, exchange: Exchange, record: Record, asked: Asked, room_tokens: int | None
    ) -> Answered:
        body, past = asked.body, asked.past

        async def render(items: Sequence[Item]) -> str:
            size = len(exchange.request.body) + sum(len(each.size_text) for each in items)
            if size > LARGE_BYTES or len(items) > _MANY_ITEMS:
                return await self._answers.aside.run(record.tenant, asked.prompt, items)
            return asked.prompt(items)

        if body.cuts_history:
            cut = await self._cutter.cut(
                record.tenant, asked.model, past, body.max_output_tokens, render, room_tokens
            )
        else:
            items = [*past.history, *past.new]
            await self._cutter.check_whole(asked.model, items)
            cut = Cut(await render(items), items, past.new)
        return Answered(cut, asked.dialect(record.request_id), HeldExchange(exchange))

    async def _generate(self, answered: Answered, record: Record, asked: Asked) -> None:
        chat = asked.chat(answered.cut.shown)
        model = asked.model
        exchange, dialect = answered.exchange, answered.dialect
        prompt, template = answered.cut.prompt, asked.template
        try:
            reading = self._images.read(chat.messages, model, record)
            images = await unless_left(reading, exchange.on_disconnect)
            calls = chat_calls(chat, prompt, record.request_id, record.tenant, model.defaults, template)
            calls = showing(calls, images, model) if images else calls
            reader = chat_reader(chat, calls[0], template)
            job = TextJob(exchange, record, model, calls, dialect, bool(chat.stream), reader)
            await self._answers.answer(job, record, exchange.on_disconnect)
        except InflightError as error:
            told = in_response_words(error)
            if exchange.started:
                exchange.end_behind(dialect.failure_event(told))
            raise told from None

    async def _finish(self, exchange: Exchange, record: Record, asked: Asked, answered: Answered) -> None:
        """Stores, then tells of the end: whoever has read it can build on it at once."""
        dialect, tail = answered.dialect, answered.exchange.tail
        response = dialect.response()
        try:
            if not await self._keep(record, asked, answered, response):
                response["store"] = False
        except InflightError as error:
            if not exchange.started:
                raise
            exchange.end(tail + dialect.failure_event(error))
            raise
        if exchange.started:
            exchange.end(tail + dialect.last_event(response))
        else:
            respond_json(exchange, record, response)

    async def _keep(self, record: Record, asked: Asked, answered: Answered, response: dict[str, Any]) -> bool:
        """Whether the response is in the store now; where nobody asked for it, it need not be."""
        body, cut = asked.body, answered.cut
        keeps_response = body.store is not False
        if not keeps_response and body.conversation is None:
            return False
        ended = EndedResponse(
            id=asked.id,
            created_s=asked.created_s,
            body=response,
            input=cut.new,
            output=_counted(answered.dialect.output, record.completion_tokens, asked.model.name),
            previous_id=body.previous_response_id,
            conversation_id=body.conversation_id,
            counted=cut.counted,
        )
        try:
            await self._responses.save(asked.owner, ended, keeps_response, bool(body.background))
        except InflightError as error:
            if body.store is None and body.conversation is None and not body.background:
                log.warning("%s was answered but not stored: %s", record.request_id, error.message)
                return False
            raise InflightError(error.kind, f"the response was not stored: {error.message}") from error
        return keeps_response


def _counted(output: Sequence[Item], tokens: int, model: str) -> Sequence[Item]:
    """The engine has counted an answer of one message already."""
    if len(output) != 1 or output[0].makes is not None:
        return output
    return [msgspec.structs.replace(output[0], tokens=tokens, counted_by=model)]
