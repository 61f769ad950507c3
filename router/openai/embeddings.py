"""POST /v1/embeddings."""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from router.core.actions import Action
from router.core.embedding import EmbeddingAnswer, EmbeddingCall, ServedEmbedder
from router.core.record import Record
from router.http.exchange import Exchange
from router.request.answer import Answers
from router.request.decoding import decode
from router.request.embedding import EmbeddingJob
from router.request.embedding_calls import as_floats, check_total, embedding_calls, need_of, vectors_of
from router.request.permit import Permit
from router.request.routes import Route
from router.routing.models import Registry


class EmbeddingsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Null is the same as not given."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    prompt_name: str | None = None  # of sentence-transformers; not OpenAI's
    user: str | None = None  # accepted, and without effect on the answer


_decoder = msgspec.json.Decoder(EmbeddingsBody)


def routes(models: Registry, answers: Answers) -> list[Route]:
    return [
        Route("POST", "/v1/embeddings", Embeddings(models, answers),
              "Turns texts, or token ids, into vectors of length 1.", EmbeddingsBody,
              action=Action.EMBEDDING_RUN, request_id_prefix="embd", asks_model=True)
    ]  # fmt: skip


class Embeddings:
    def __init__(self, models: Registry, answers: Answers) -> None:
        self._models = models
        self._answers = answers

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        body = await aside.when_large(len(raw), record.tenant, decode_embeddings, raw)
        record.user = body.user or record.user
        model = self._models.find_embedder(body.model, record)
        asked = (body.input, model.limits, body.dimensions, body.prompt_name)
        calls = await aside.when_large(len(raw), record.tenant, embedding_calls, *asked)
        job = _Job(exchange, record, model, calls, body.encoding_format)
        await self._answers.answer(job, record, exchange.on_disconnect)


class _Job(EmbeddingJob):
    """Rows are rendered while the model computes the next ones."""

    def __init__(
        self,
        exchange: Exchange,
        record: Record,
        served: ServedEmbedder,
        calls: list[EmbeddingCall],
        encoding_format: str | None,
    ) -> None:
        super().__init__(record, served, calls, need_of(calls))
        self._exchange = exchange
        self._format = encoding_format
        self._rows = [b""] * len(calls)

    def take(self, number: int, answer: EmbeddingAnswer) -> None:
        check_total(self.record.prompt_tokens)
        self._rows[number] = render_rows(answer, self.calls[number].first, self._format)

    async def deliver(self, permit: Permit) -> None:
        record = self.record
        content = render_whole(self.served.name, self._rows, record.prompt_tokens)
        permit.finished()
        self._exchange.respond(200, content, [("content-type", "application/json"), *record.headers()])


def decode_embeddings(body: bytes) -> EmbeddingsBody:
    return decode(_decoder, body, has_numbers=True)


def render_rows(answer: EmbeddingAnswer, first: int, encoding_format: str | None) -> bytes:
    """The rows of one answer, the first of them with this index; float without a format, as OpenAI's own."""
    encode = _as_base64 if encoding_format == "base64" else as_floats
    return b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, encode(vector))
        for index, vector in enumerate(vectors_of(answer), first)
    )


def render_whole(model: str, rows: Iterable[bytes], tokens: int) -> bytes:
    tail = msgspec.json.encode({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return b'{"object":"list","data":[%b],%b' % (b",".join(rows), tail[1:])


def _as_base64(vector: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(vector, newline=False)
