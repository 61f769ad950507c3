"""What a request wants embedded, as calls of the model: texts or token ids, one or many."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

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
    TokenIds,
    calls_of,
)
from router.core.generation import text_tokens
from router.request.decoding import invalid

MAX_INPUTS = 2048
MAX_TOTAL_TOKENS = 300_000
_FLOAT_BYTES = 4
_WANTED = "a string, a list of strings, a list of token ids, or a list of such lists"

Input = TypeVar("Input")
_Ids = list[Annotated[int, Meta(ge=0)]]


def embedding_calls(
    given: str | list[Any],
    limits: EmbeddingLimits,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> list[EmbeddingCall]:
    """All calls for texts or token ids; refuses them all when one of them is wrong."""
    dimensions = dimensions or limits.dimensions
    if dimensions > limits.dimensions:
        raise _invalid(
            f"dimensions: {dimensions} is more than this model supports; allowed: 1 to {limits.dimensions}",
            "dimensions",
        )
    first = given if isinstance(given, str) else next(iter(given), None)
    if isinstance(first, str):
        texts = _prompted(_texts(given), prompt_name, limits)
        most = [min(limits.max_tokens, len(text.encode()) + SPECIAL_TOKENS) for text in texts]
        likely = [min(limits.max_tokens, text_tokens(text) + SPECIAL_TOKENS) for text in texts]
        return _split(texts, likely, most, dimensions)
    if prompt_name is not None:
        raise _invalid(
            "prompt_name: not allowed with token ids, as a prompt is prepended to texts", "prompt_name"
        )
    ids = _ids(given, first, limits)
    counts = [min(limits.max_tokens, len(row) + SPECIAL_TOKENS) for row in ids]
    check_total(sum(counts))
    return _split(ids, counts, counts, dimensions)


def check_total(tokens: int) -> None:
    """Of texts only the model knows the tokens, so theirs are summed up while its answers come."""
    if tokens > MAX_TOTAL_TOKENS:
        raise _invalid(f"input: {tokens} tokens in total; allowed: at most {MAX_TOTAL_TOKENS} per request")


def need_of(calls: Sequence[EmbeddingCall]) -> Need:
    """However many rows there are, only those of a few calls are under way at once."""
    tokens = min(sum(call.most_tokens for call in calls), MAX_TOTAL_TOKENS)
    rows = [len(call.rows) for call in calls]
    return Need(tokens, sequences=sum(rows[:CALLS_AT_ONCE]), rows=sum(rows))


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
        raise _invalid(f"prompt_name: unknown prompt; allowed: {allowed}", "prompt_name")
    prompt = limits.prompts.get(limits.default_prompt if name is None else name, "")
    return [prompt + text for text in texts] if prompt else texts


def _ids(given: Any, first: Any, limits: EmbeddingLimits) -> list[TokenIds]:
    check_total(len(given) + sum(len(each) for each in given if isinstance(each, list)))
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


def vectors_of(answer: EmbeddingAnswer) -> Iterator[bytes]:
    size = len(answer.vectors) // len(answer.tokens)
    return (answer.vectors[start : start + size] for start in range(0, len(answer.vectors), size))


def as_floats(vector: bytes) -> bytes:
    return msgspec.json.encode(struct.unpack(f"<{len(vector) // _FLOAT_BYTES}f", vector))


def _invalid(message: str, param: str | None = "input") -> InflightError:
    return invalid(message, param)
