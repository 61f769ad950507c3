"""POST /v1/rerank and /v1/score: how well texts go together, by a cross-encoder or by their embeddings."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from router.core.actions import Action
from router.core.embedding import (
    ROWS_PER_CALL,
    SPECIAL_TOKENS,
    EmbeddingAnswer,
    EmbeddingCall,
    EmbeddingLimits,
    ServedEmbedder,
    calls_of,
)
from router.core.generation import text_tokens
from router.core.record import Record
from router.http.exchange import Exchange
from router.request.answer import Answers
from router.request.decoding import decode, invalid
from router.request.embedding import EmbeddingJob
from router.request.embedding_calls import MAX_INPUTS, check_total, need_of, vectors_of
from router.request.errors import respond_json
from router.request.permit import Permit
from router.request.routes import Route
from router.routing.models import Registry

_FLOAT_BYTES = 4
Score = tuple[int, float]
Scorer = Callable[[int, EmbeddingAnswer], Iterator[Score]]
_Render = Callable[[Record, str, Sequence[float]], dict[str, Any]]


class Document(msgspec.Struct, frozen=True):
    text: str


class RerankBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As Jina, Cohere and vLLM have it. Null is the same as not given."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    user: str | None = None  # accepted, and without effect on the answer


class ScoreBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As vLLM has it: each of the first texts with the second at its place, or one text with all others."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    user: str | None = None


_rerank_decoder = msgspec.json.Decoder(RerankBody)
_score_decoder = msgspec.json.Decoder(ScoreBody)


def routes(models: Registry, answers: Answers) -> list[Route]:
    rerank, score = (Scoring(models, answers, read) for read in (read_rerank, read_score))
    told = "Orders texts by their relevance to a query."
    same = "The same as /v1"
    return [
        *(
            Route("POST", path, rerank, told if path == "/v1/rerank" else f"{same}/rerank.", RerankBody,
                  answer="Reranking",
                  action=Action.EMBEDDING_RUN, request_id_prefix="rerank", asks_model=True)
            for path in ("/v1/rerank", "/rerank", "/v2/rerank")
        ),
        *(
            Route("POST", path, score, "Scores pairs of texts." if path == "/v1/score" else f"{same}/score.",
                  ScoreBody, answer="Scores", action=Action.EMBEDDING_RUN, request_id_prefix="score",
                  asks_model=True)
            for path in ("/v1/score", "/score")
        ),
    ]  # fmt: skip


class Scoring:
    """`read` makes of a body which pairs are to be scored, and how that is answered."""

    def __init__(self, models: Registry, answers: Answers, read: Callable[[bytes], _Asked]) -> None:
        self._models = models
        self._answers = answers
        self._read = read

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        asked = await aside.when_large(len(raw), record.tenant, self._read, raw)
        record.user = asked.user or record.user
        model = self._models.find_scorer(asked.model, record)
        plan = await aside.when_large(len(raw), record.tenant, plan_of, asked.pairs, model.limits)
        job = _Job(exchange, record, model, asked, plan)
        await self._answers.answer(job, record, exchange.on_disconnect)


class _Asked(msgspec.Struct, frozen=True):
    model: str
    user: str | None
    pairs: list[tuple[str, str]]
    render: _Render


def read_rerank(raw: bytes) -> _Asked:
    body = decode(_rerank_decoder, raw)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    _check_count(len(texts), "documents")
    if not body.query:
        raise invalid("query: an empty text cannot be compared; send at least one character", "query")
    if "" in texts:
        where = f"documents[{texts.index('')}]"
        raise invalid(f"{where}: an empty text has no score; send at least one character", where)
    is_told = body.return_documents is not False

    def render(record: Record, model: str, scores: Sequence[float]) -> dict[str, Any]:
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": texts[index]}} if is_told else {})
            for index in order
        ]
        return {"id": record.request_id, "object": "list", "model": model, "results": results} | _usage(
            record
        )

    return _Asked(body.model, body.user, [(body.query, text) for text in texts], render)


def read_score(raw: bytes) -> _Asked:
    body = decode(_score_decoder, raw)
    firsts = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    seconds = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    for texts, name in ((firsts, "text_1"), (seconds, "text_2")):
        _check_count(len(texts), name)
        if "" in texts:
            raise invalid(f"{name}: an empty text has no score; send at least one character", name)
    if len(firsts) != len(seconds) and min(len(firsts), len(seconds)) > 1:
        found = f"{len(firsts)} and {len(seconds)} texts"
        raise invalid(
            f"text_1 and text_2: {found}; allowed: the same number of both, or one of either", "text_2"
        )
    count = max(len(firsts), len(seconds))
    firsts, seconds = (texts * count if len(texts) == 1 else texts for texts in (firsts, seconds))

    def render(record: Record, model: str, scores: Sequence[float]) -> dict[str, Any]:
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        told = {"id": record.request_id, "object": "list", "created": int(record.began_s)}
        return told | {"model": model, "data": data} | _usage(record)

    return _Asked(body.model, body.user, list(zip(firsts, seconds, strict=True)), render)


class Plan(msgspec.Struct, frozen=True):
    """The calls that scores take, and what each answer makes of them."""

    calls: list[EmbeddingCall]
    scorer: Scorer


def plan_of(pairs: Sequence[tuple[str, str]], limits: EmbeddingLimits) -> Plan:
    """A cross-encoder reads both texts at once; an embedder reads each, and vectors are compared."""
    if limits.is_reranker:
        return _by_reranker(pairs, limits)
    if all(first == pairs[0][0] for first, _ in pairs):
        return _by_one_vector(pairs, limits)
    return _by_two_vectors(pairs, limits)


def _by_reranker(pairs: Sequence[tuple[str, str]], limits: EmbeddingLimits) -> Plan:
    calls = []
    for cut in calls_of([_likely(limits, *pair) for pair in pairs]):
        firsts, seconds = (list(texts) for texts in zip(*pairs[cut], strict=True))
        most = sum(_most(limits, *pair) + SPECIAL_TOKENS for pair in pairs[cut])
        calls.append(EmbeddingCall(firsts, 1, most, seconds, cut.start))

    def score(number: int, answer: EmbeddingAnswer) -> Iterator[Score]:
        return enumerate(_floats(answer.vectors), calls[number].first)

    return Plan(calls, score)


def _by_one_vector(pairs: Sequence[tuple[str, str]], limits: EmbeddingLimits) -> Plan:
    """The query is the first row of the first call; what comes before its vector has to wait for it."""
    query = limits.prompted(pairs[0][0], "query")
    rows = [query, *(limits.prompted(second, "document") for _, second in pairs)]
    calls = _embedding_calls(rows, limits)
    early: list[tuple[int, EmbeddingAnswer]] = []
    vector: list[float] = []

    def score(number: int, answer: EmbeddingAnswer) -> Iterator[Score]:
        early.append((number, answer))
        if number == 0:
            vector.extend(next(_vectors(answer)))
        while vector and early:
            number, answer = early.pop()
            for row, other in enumerate(_vectors(answer), calls[number].first):
                if row:
                    yield row - 1, _dot(vector, other)

    return Plan(calls, score)


def _by_two_vectors(pairs: Sequence[tuple[str, str]], limits: EmbeddingLimits) -> Plan:
    """The texts of a pair stand side by side, in one call."""
    calls = _embedding_calls([text for pair in pairs for text in pair], limits, together=2)

    def score(number: int, answer: EmbeddingAnswer) -> Iterator[Score]:
        vectors = list(_vectors(answer))
        for row in range(0, len(vectors), 2):
            yield (calls[number].first + row) // 2, _dot(vectors[row], vectors[row + 1])

    return Plan(calls, score)


def _embedding_calls(rows: list[str], limits: EmbeddingLimits, together: int = 1) -> list[EmbeddingCall]:
    """So many rows at a time are in one call."""
    groups = [rows[start : start + together] for start in range(0, len(rows), together)]
    sizes = [sum(_likely(limits, row) for row in group) for group in groups]
    calls = []
    for cut in calls_of(sizes, ROWS_PER_CALL // together):
        chosen = rows[cut.start * together : cut.stop * together]
        most = sum(_most(limits, row) for row in chosen)
        calls.append(EmbeddingCall(chosen, limits.dimensions, most, first=cut.start * together))
    return calls


class _Job(EmbeddingJob):
    """Scores are made while the model computes the next ones."""

    def __init__(
        self, exchange: Exchange, record: Record, served: ServedEmbedder, asked: _Asked, plan: Plan
    ) -> None:
        super().__init__(record, served, plan.calls, need_of(plan.calls))
        self._exchange = exchange
        self._asked = asked
        self._scorer = plan.scorer
        self._scores = [0.0] * len(asked.pairs)

    def take(self, number: int, answer: EmbeddingAnswer) -> None:
        check_total(self.record.prompt_tokens)
        for index, score in self._scorer(number, answer):
            self._scores[index] = score

    async def deliver(self, permit: Permit) -> None:
        permit.finished()
        content = self._asked.render(self.record, self.served.name, self._scores)
        respond_json(self._exchange, self.record, content)


def _check_count(count: int, name: str) -> None:
    if not 1 <= count <= MAX_INPUTS:
        raise invalid(f"{name}: {count} texts; allowed: 1 to {MAX_INPUTS}", name)


def _usage(record: Record) -> dict[str, Any]:
    tokens = record.prompt_tokens
    return {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _most(limits: EmbeddingLimits, *texts: str) -> int:
    return min(limits.max_tokens, sum(len(text.encode()) for text in texts) + limits.frame_tokens)


def _likely(limits: EmbeddingLimits, *texts: str) -> int:
    return min(limits.max_tokens, sum(text_tokens(text) for text in texts) + limits.frame_tokens)


def _vectors(answer: EmbeddingAnswer) -> Iterator[tuple[float, ...]]:
    return map(_floats, vectors_of(answer))


def _floats(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // _FLOAT_BYTES}f", raw)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of vectors of length 1."""
    return float(sum(map(mul, one, other)))
