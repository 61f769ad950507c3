"""POST /v1/embeddings without its transport: a body to calls of the model, the model's answers to a body."""

from __future__ import annotations

import binascii
import json
import struct
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.api.bodies import explain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_INPUTS = 2048
MAX_TOTAL_TOKENS = 300_000
# Small enough for others to get in between, large enough for the calls of a long list to be few.
ROWS_PER_CALL = 16
SPECIAL_TOKENS = 2  # around each text
_FLOAT_BYTES = 4
_WANTED = "a string, a list of strings, a list of token ids, or a list of such lists"

Input = TypeVar("Input")
TokenIds = list[int]
_Ids = list[Annotated[int, Meta(ge=0)]]


class EmbeddingsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Null is the same as not given."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None  # accepted, and without effect on the answer


class EmbeddingLimits(msgspec.Struct, frozen=True):
    """What one model takes and gives; a text is cut at `max_tokens`."""

    dimensions: int
    vocabulary: int
    max_tokens: int


class EmbeddingCall(msgspec.Struct, frozen=True):
    """One request to the model: texts or token ids, a row each."""

    rows: list[str] | list[TokenIds]
    dimensions: int
    most_tokens: int  # what it can come to, to be reserved before it is sent


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """What the model says to one call: vectors in little-endian fp32, end to end, and tokens of each row."""

    vectors: bytes
    tokens: list[int]


_decoder = msgspec.json.Decoder(EmbeddingsBody)


def decode_embeddings(body: bytes) -> EmbeddingsBody:
    try:
        return _decoder.decode(body)
    except RecursionError:
        raise _invalid("the JSON is nested too deeply", None) from None
    except UnicodeDecodeError:
        raise _invalid("the body is not valid UTF-8", None) from None
    except msgspec.ValidationError as error:
        raise explain(str(error)) from None
    except msgspec.DecodeError as error:
        raise _invalid(f"the body is not valid JSON: {error}", None) from None


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
        texts = _texts(body.input)
        most = [min(limits.max_tokens, len(text.encode()) + SPECIAL_TOKENS) for text in texts]
        return _split(texts, most, dimensions)
    ids = _ids(body.input, first, limits)
    counts = [min(limits.max_tokens, len(row) + SPECIAL_TOKENS) for row in ids]
    check_total(sum(counts))
    return _split(ids, counts, dimensions)


def check_total(tokens: int) -> None:
    """Of texts only the model knows the tokens, so theirs are summed up while its answers come."""
    if tokens > MAX_TOTAL_TOKENS:
        raise _invalid(f"input: {tokens} tokens in all; allowed: at most {MAX_TOTAL_TOKENS} a request")


def render(model: str, encoding_format: str | None, answers: Sequence[EmbeddingAnswer]) -> bytes:
    """The answer's body; without a format it is float, as OpenAI's own."""
    encode = _as_base64 if encoding_format == "base64" else _as_floats
    data: list[bytes] = []
    for answer in answers:
        size = len(answer.vectors) // len(answer.tokens)
        for row in range(len(answer.tokens)):
            vector = encode(answer.vectors[row * size : (row + 1) * size])
            data.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (len(data), vector))
    total = sum(sum(answer.tokens) for answer in answers)
    tail = msgspec.json.encode({"model": model, "usage": {"prompt_tokens": total, "total_tokens": total}})
    return b'{"object":"list","data":[%b],%b' % (b",".join(data), tail[1:])


def load_limits(checkpoint_dir: Path) -> EmbeddingLimits:
    """From the files that the model itself reads; for the router's start."""
    config = json.loads((checkpoint_dir / "config.json").read_text(encoding="utf-8"))
    sentences = checkpoint_dir / "sentence_bert_config.json"
    chosen = json.loads(sentences.read_text(encoding="utf-8")) if sentences.is_file() else {}
    return EmbeddingLimits(
        dimensions=config["hidden_size"],
        vocabulary=config["vocab_size"],
        max_tokens=chosen.get("max_seq_length") or config["max_position_embeddings"],
    )


def _texts(given: str | list[Any]) -> list[str]:
    texts = [given] if isinstance(given, str) else _convert(given, list[str])
    _check_count(texts)
    if "" in texts:
        where = "input" if isinstance(given, str) else f"input[{texts.index('')}]"
        raise _invalid(f"{where}: an empty string has no embedding; send at least one character", where)
    return texts


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


def _split(inputs: list[Any], most_tokens: Sequence[int], dimensions: int) -> list[EmbeddingCall]:
    starts = range(0, len(inputs), ROWS_PER_CALL)
    cuts = [slice(start, start + ROWS_PER_CALL) for start in starts]
    return [EmbeddingCall(inputs[cut], dimensions, sum(most_tokens[cut])) for cut in cuts]


def _as_base64(vector: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(vector, newline=False)


def _as_floats(vector: bytes) -> bytes:
    return msgspec.json.encode(struct.unpack(f"<{len(vector) // _FLOAT_BYTES}f", vector))


def _invalid(message: str, param: str | None = "input") -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message, param)
