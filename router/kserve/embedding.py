"""An embedding model by its contract: rows of texts or of token ids to vectors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from python_backend.wire import codec
from python_backend.wire.tensors import EMBEDDINGS
from router.admission.demand import Need
from router.core.embedding import SPECIAL_TOKENS, EmbeddingCall
from router.core.tenant import Scope
from router.kserve.answers import Answer, Output, pick
from router.kserve.offers import Asked, Delivery, Offer
from router.kserve.tensors import MAX_ROWS, Value, Values, by_name, refuse
from router.request.embedding import EmbeddingJob as AnyEmbeddingJob

if TYPE_CHECKING:
    from python_backend.wire.errors import InflightError
    from router.core.embedding import EmbeddingAnswer, EmbeddingLimits, ServedEmbedder, TokenIds
    from router.core.record import Record
    from router.request.permit import Permit

_PADDING = -1
_INPUTS, _OUTPUTS = by_name(EMBEDDINGS.inputs), by_name(EMBEDDINGS.outputs)


def embedding_offer(served: ServedEmbedder) -> Offer:
    job = partial(EmbeddingJob, served)
    return Offer(served, _INPUTS, _OUTPUTS, MAX_ROWS, False, job, Scope.EMBEDDINGS)


class EmbeddingJob(AnyEmbeddingJob):
    """One call of the model, whose one answer holds all rows."""

    def __init__(
        self, served: ServedEmbedder, asked: Asked, record: Record, whole: bool, delivery: Delivery
    ) -> None:
        call = embedding_call(asked.values, served.limits)
        super().__init__(record, served, [call], Need(call.most_tokens, sequences=len(call.rows)))
        self._delivery = delivery
        self._shown = asked.outputs or frozenset(_OUTPUTS)
        self._outputs: dict[str, Output] = {}

    def take(self, number: int, answer: EmbeddingAnswer) -> None:
        rows = len(answer.tokens)
        vectors = Output("EMBEDDING", "FP32", (rows, self.calls[0].dimensions), answer.vectors)
        tokens = Output("TOKENS", "INT32", (rows, 1), codec.encode("INT32", answer.tokens))
        self._outputs = {"EMBEDDING": vectors, "TOKENS": tokens}

    async def deliver(self, permit: Permit) -> None:
        permit.finished()
        await self._delivery.take(Answer(pick(self._outputs, self._shown), final=True))

    def fail(self, error: InflightError) -> None:
        self._delivery.fail(error)


def embedding_call(values: Values, limits: EmbeddingLimits) -> EmbeddingCall:
    texts, seconds, ids = (values.get(name) for name in ("TEXT", "TEXT_PAIR", "INPUT_IDS"))
    if texts is None and ids is None:
        raise refuse("input 'TEXT' or 'INPUT_IDS' is missing", "TEXT")
    if texts is not None and ids is not None:
        raise refuse("inputs 'TEXT' and 'INPUT_IDS' exclude each other: send one of them", "INPUT_IDS")
    dimensions = _dimensions(values.get("DIMENSIONS"), limits)
    if texts is not None:
        rows = [text.decode() for text in texts.elements]
        if not all(rows):
            raise refuse("input 'TEXT': an empty text has no embedding", "TEXT")
        if seconds is None:
            rows = [limits.prompted(row, limits.default_prompt) for row in rows]
            return EmbeddingCall(rows, dimensions, _most([len(row.encode()) for row in rows], limits))
        if not limits.is_reranker:
            raise refuse("input 'TEXT_PAIR': this model makes embeddings of single texts", "TEXT_PAIR")
        others = [text.decode() for text in seconds.elements]
        if len(others) != len(rows):
            raise refuse("inputs 'TEXT' and 'TEXT_PAIR' must have the same number of rows", "TEXT_PAIR")
        texts_of_pairs = zip(texts.elements, seconds.elements, strict=True)
        both = [len(first) + len(second) + SPECIAL_TOKENS for first, second in texts_of_pairs]
        return EmbeddingCall(rows, dimensions, _most(both, limits), others)
    if seconds is not None:
        raise refuse("input 'TEXT_PAIR' needs input 'TEXT'", "TEXT_PAIR")
    assert ids is not None
    id_rows = _id_rows(ids, limits)
    return EmbeddingCall(id_rows, dimensions, _most([len(row) for row in id_rows], limits))


def _most(sizes: list[int], limits: EmbeddingLimits) -> int:
    return sum(min(limits.max_tokens, size + SPECIAL_TOKENS) for size in sizes)


def _dimensions(given: Value | None, limits: EmbeddingLimits) -> int:
    if given is None:
        return limits.dimensions
    chosen = set(given.elements)
    if len(chosen) > 1 or not 1 <= min(chosen) <= limits.dimensions:
        allowed = f"the same for all rows, 1 to {limits.dimensions}"
        raise refuse(f"input 'DIMENSIONS': allowed is {allowed}", "DIMENSIONS")
    return int(given.elements[0])


def _id_rows(ids: Value, limits: EmbeddingLimits) -> list[TokenIds]:
    """Rows of different lengths are filled up with -1 at their ends."""
    rows = []
    for index in range(ids.rows):
        row = ids.row(index)
        while row and row[-1] == _PADDING:
            row.pop()
        if not row or min(row) < 0 or max(row) >= limits.vocabulary:
            allowed = f"ids from 0 to {limits.vocabulary - 1}, then -1 as padding"
            raise refuse(f"input 'INPUT_IDS', row {index}: allowed are {allowed}", "INPUT_IDS")
        rows.append(row)
    return rows
