"""POST /v1/embeddings: a body to calls of the model, the model's answers to a body."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from python_backend.wire.errors import InflightError
from router.admission.demand import Need
from router.core.embedding import (
    CALLS_AT_ONCE,
    SPECIAL_TOKENS,
    EmbeddingAnswer,
    EmbeddingCall,
    EmbeddingLimits,
    ServedEmbedder,
    TokenIds,
    calls_of,
)
from router.core.generation import text_tokens
from router.core.record import Record
from router.core.tenant import Scope
from router.http.exchange import Exchange
from router.request.answer import Answers
from router.request.aside import LARGE_BYTES
from router.request.decoding import decode, invalid
from router.request.embedding import EmbeddingJob
from router.request.permit import Permit
from router.request.routes import Route
from router.routing.models import Registry

MAX_INPUTS = 2048
MAX_TOTAL_TOKENS = 300_000
_FLOAT_BYTES = 4
_WANTED = "a string, a list of strings, a list of token ids, or a list of such lists"

Input = TypeVar("Input")
_Ids = list[Annotated[int, Meta(ge=0)]]


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
              scope=Scope.EMBEDDINGS, request_id_prefix="embd", asks_model=True)
    ]  # fmt: skip


class Embeddings:
    def __init__(self, models: Registry, answers: Answers) -> None:
        self._models = models
        self._answers = answers

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        is_large = len(raw) > LARGE_BYTES
        body = await aside.run(record.tenant, decode_embeddings, raw) if is_large else decode_embeddings(raw)
        record.user = body.user or record.user
        model = self._models.find_embedder(body.model, record)
        asked = (body, model.limits)
        calls = (
            await aside.run(record.tenant, embedding_calls, *asked) if is_large else embedding_calls(*asked)
        )
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


def need_of(calls: Sequence[EmbeddingCall]) -> Need:
    """However many rows there are, only those of a few calls are under way at once."""
    tokens = min(sum(call.most_tokens for call in calls), MAX_TOTAL_TOKENS)
    rows = [len(call.rows) for call in calls]
    return Need(tokens, sequences=sum(rows[:CALLS_AT_ONCE]), rows=sum(rows))


def decode_embeddings(body: bytes) -> EmbeddingsBody:
    return decode(_decoder, body)


def embedding_calls(body: EmbeddingsBody, limits: EmbeddingLimits) -> list[EmbeddingCall]:
    """All calls that a body makes; refuses it whole when one of its inputs is wrong."""
    dimensions = body.dimensions or limits.dimensions
    if dimensions > limits.dimensions:
        raise _invalid(
            f"dimensions: {dimensions} is more than this model has; allowed: 1 to {limits.dimensions}",
            "dimensions",
        )
    first = body.input if isinstance(body.input, str) else next(iter(body.input), None)
    if isinstance(first, str):
        texts = _prompted(_texts(body.input), body.prompt_name, limits)
        most = [min(limits.max_tokens, len(text.encode()) + SPECIAL_TOKENS) for text in texts]
        likely = [min(limits.max_tokens, text_tokens(text) + SPECIAL_TOKENS) for text in texts]
        return _split(texts, likely, most, dimensions)
    if body.prompt_name is not None:
        raise _invalid("prompt_name: a prompt is put before texts; these are token ids", "prompt_name")
    ids = _ids(body.input, first, limits)
    counts = [min(limits.max_tokens, len(row) + SPECIAL_TOKENS) for row in ids]
    check_total(sum(counts))
    return _split(ids, counts, counts, dimensions)


def check_total(tokens: int) -> None:
    """Of texts only the model knows the tokens, so theirs are summed up while its answers come."""
    if tokens > MAX_TOTAL_TOKENS:
        raise _invalid(f"input: {tokens} tokens in all; allowed: at most {MAX_TOTAL_TOKENS} a request")


def render_rows(answer: EmbeddingAnswer, first: int, encoding_format: str | None) -> bytes:
    """The rows of one answer, the first of them with this index; float without a format, as OpenAI's own."""
    encode = _as_base64 if encoding_format == "base64" else as_floats
    return b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, encode(vector))
        for index, vector in enumerate(vectors_of(answer), first)
    )


def vectors_of(answer: EmbeddingAnswer) -> Iterator[bytes]:
    size = len(answer.vectors) // len(answer.tokens)
    return (answer.vectors[start : start + size] for start in range(0, len(answer.vectors), size))


def render_whole(model: str, rows: Iterable[bytes], tokens: int) -> bytes:
    tail = msgspec.json.encode({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return b'{"object":"list","data":[%b],%b' % (b",".join(rows), tail[1:])


def _texts(given: str | list[Any]) -> list[str]:
    texts = [given] if isinstance(given, str) else _convert(given, list[str])
    _check_count(texts)
    if "" in texts:
        where = "input" if isinstance(given, str) else f"input[{texts.index('')}]"
        raise _invalid(f"{where}: an empty string has no embedding; send at least one character", where)
    return texts


def _prompted(texts: list[str], name: str | None, limits: EmbeddingLimits) -> list[str]:
    """What the model's authors want texts to begin with; without a name, as they have it by default."""
    if name is not None and name not in limits.prompts:
        allowed = ", ".join(map(repr, limits.prompts)) or "none: this model has no prompts"
        raise _invalid(f"prompt_name: there is no such prompt; allowed: {allowed}", "prompt_name")
    prompt = limits.prompts.get(limits.default_prompt if name is None else name, "")
    return [prompt + text for text in texts] if prompt else texts


def _ids(given: Any, first: Any, limits: EmbeddingLimits) -> list[TokenIds]:
    if type(first) is int:
        rows = [_convert(given, _Ids)]
    elif isinstance(first, list):
        rows = _convert(given, list[_Ids])
    else:
        raise _invalid(f"input: expected {_WANTED}, none of them empty")
    _check_count(rows)
    for index, row in enumerate(rows):
        if not row or max(row) >= limits.vocabulary:
            where = "input" if type(first) is int else f"input[{index}]"
            found = (
                f"token id {max(row)} is not in this model's vocabulary" if row else "there is no token id"
            )
            raise _invalid(
                f"{where}: {found}; allowed: ids from 0 to {limits.vocabulary - 1}, of this model's own "
                "tokenizer (send text if in doubt)",
                where,
            )
    return rows


def _check_count(inputs: Sequence[object]) -> None:
    if len(inputs) > MAX_INPUTS:
        raise _invalid(f"input: {len(inputs)} inputs; allowed: 1 to {MAX_INPUTS}")


def _convert(values: Any, kind: type[Input]) -> Input:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        path = f"input{where.rstrip('`')}"
        message = f"{path}: {what[0].lower()}{what[1:]}; input is {_WANTED}"
        raise _invalid(message, path) from None


def _split(
    inputs: list[Any], likely_tokens: Sequence[int], most_tokens: Sequence[int], dimensions: int
) -> list[EmbeddingCall]:
    return [
        EmbeddingCall(inputs[cut], dimensions, sum(most_tokens[cut]), first=cut.start)
        for cut in calls_of(likely_tokens)
    ]


def _as_base64(vector: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(vector, newline=False)


def as_floats(vector: bytes) -> bytes:
    return msgspec.json.encode(struct.unpack(f"<{len(vector) // _FLOAT_BYTES}f", vector))


def _invalid(message: str, param: str | None = "input") -> InflightError:
    return invalid(message, param)
