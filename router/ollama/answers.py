"""POST /api/chat, /api/generate, /api/embed and /api/embeddings: Ollama's API over the same path."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from router.chat.answer import answer_chat
from router.chat.calls import chat_calls
from router.core.actions import Action
from router.core.messages import Message
from router.ollama.bodies import (
    EmbedBody,
    OllamaChatBody,
    OllamaPromptBody,
    read,
    read_chat,
    served_name,
    with_images,
)
from router.ollama.dialect import NDJSON, Lines, measured
from router.request.decoding import invalid
from router.request.embedding import EmbeddingJob
from router.request.embedding_calls import as_floats, check_total, embedding_calls, need_of, vectors_of
from router.request.errors import respond_encoded, respond_json
from router.request.identity import check_model_allowed
from router.request.routes import Route
from router.request.text import TextJob

if TYPE_CHECKING:
    from router.chat.bodies import ChatBody
    from router.chat.images import Images
    from router.core.embedding import EmbeddingAnswer, EmbeddingCall, ServedEmbedder
    from router.core.generation import GenerationCall
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.request.permit import Permit
    from router.routing.models import Registry, ServedModel

_ONE = "/api/embeddings"


class OllamaAnswers:
    def __init__(self, models: Registry, answers: Answers, images: Images) -> None:
        self._models = models
        self._answers = answers
        self._images = images

    async def chat(self, exchange: Exchange, record: Record) -> None:
        chat: ChatBody = await self._read(exchange, record, read_chat)
        model = self._models.find(chat.model, record)
        lines = Lines(record, model.name, is_chat=True)
        if chat.messages:
            await answer_chat(self._answers, self._images, exchange, record, model, chat, lines)
        else:
            _say_loaded(exchange, record, model, lines)

    async def generate(self, exchange: Exchange, record: Record) -> None:
        body: OllamaPromptBody = await self._read(exchange, record, partial(read, OllamaPromptBody))
        texts = (("system", body.system), ("user", with_images(body.prompt, body.images)))
        chat = body.chat([Message(role, text) for role, text in texts if text])
        model = self._models.find(chat.model, record)
        lines = Lines(record, model.name, is_chat=False)
        if not body.prompt:
            _say_loaded(exchange, record, model, lines)
        elif body.raw or model.template is None:
            calls = _plain_calls(body, chat, record, model)
            job = TextJob(exchange, record, model, calls, lines, bool(chat.stream))
            await self._answers.answer(job, record, exchange.on_disconnect)
        else:
            await answer_chat(self._answers, self._images, exchange, record, model, chat, lines)

    async def embed(self, exchange: Exchange, record: Record) -> None:
        body: EmbedBody = await self._read(exchange, record, partial(read, EmbedBody))
        texts = body.texts(is_one=record.route == _ONE)
        model = self._models.find_embedder(served_name(body.model), record)
        asked = (texts, model.limits, body.dimensions)
        size, aside = len(exchange.request.body), self._answers.aside
        calls = await aside.when_large(size, record.tenant, embedding_calls, *asked)
        job = _Embedding(exchange, record, model, calls)
        await self._answers.answer(job, record, exchange.on_disconnect)

    async def _read(self, exchange: Exchange, record: Record, work: Any) -> Any:
        raw = exchange.request.body
        return await self._answers.aside.when_large(len(raw), record.tenant, work, raw)


def _say_loaded(exchange: Exchange, record: Record, model: ServedModel, lines: Lines) -> None:
    """To whoever asks nothing, which is how to have a model loaded."""
    check_model_allowed(record.caller, model.name)
    respond_json(exchange, record, lines.last("load"))


def _plain_calls(
    body: OllamaPromptBody, chat: ChatBody, record: Record, model: ServedModel
) -> list[GenerationCall]:
    """The prompt as it is, without a template."""
    if body.images:
        raise invalid("images: not allowed with a raw prompt or a model without a chat template", "images")
    if body.system:
        raise invalid("system: not allowed with a raw prompt or a model without a chat template", "system")
    made = chat_calls(chat, body.prompt, record.request_id, record.tenant, model.defaults)
    return [msgspec.structs.replace(call, add_special_tokens=True) for call in made]


class _Embedding(EmbeddingJob):
    def __init__(
        self, exchange: Exchange, record: Record, served: ServedEmbedder, calls: list[EmbeddingCall]
    ) -> None:
        super().__init__(record, served, calls, need_of(calls))
        self._exchange = exchange
        self._rows = [b""] * len(calls)

    def take(self, number: int, answer: EmbeddingAnswer) -> None:
        check_total(self.record.prompt_tokens)
        self._rows[number] = b",".join(map(as_floats, vectors_of(answer)))

    async def deliver(self, permit: Permit) -> None:
        rows, record = b",".join(self._rows), self.record
        permit.finished()
        told = {"model": self.served.name, **measured(record), "prompt_eval_count": record.prompt_tokens}
        whole = b'{"embeddings":[%b],%b' % (rows, msgspec.json.encode(told)[1:])
        if record.route == _ONE:
            whole = b'{"embedding":%b}' % rows
        respond_encoded(self._exchange, record, whole)


def routes(models: Registry, answers: Answers, images: Images) -> list[Route]:
    api = OllamaAnswers(models, answers, images)
    # Ollama reads a body as JSON whatever its type is, and its examples for curl rely on that.
    post = partial(
        Route, "POST", takes="", asks_model=True, request_id_prefix="ollama", action=Action.INFERENCE_RUN
    )
    lines = f"OllamaAnswer or {NDJSON}"
    vectors = partial(post, action=Action.EMBEDDING_RUN)
    return [
        post("/api/chat", api.chat, "Answer a conversation, in Ollama's API", OllamaChatBody, lines),
        post("/api/generate", api.generate, "Answer a prompt, in Ollama's API", OllamaPromptBody, lines),
        vectors("/api/embed", api.embed, "Embed texts, in Ollama's API", EmbedBody, "OllamaVectors"),
        vectors(_ONE, api.embed, "Embed one text, in Ollama's API", EmbedBody, "OllamaVector"),
    ]
