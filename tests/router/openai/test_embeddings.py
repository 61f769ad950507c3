"""The bodies of POST /v1/embeddings: what is asked, what is refused, what is answered."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import (
    ROWS_PER_CALL,
    TOKENS_PER_CALL,
    EmbeddingAnswer,
    EmbeddingCall,
    EmbeddingLimits,
    calls_of,
)
from router.openai.embeddings import decode_embeddings, render_rows, render_whole
from router.request.embedding_calls import MAX_INPUTS, MAX_TOTAL_TOKENS, check_total, embedding_calls
from router.routing.checkpoint import load_limits

MODEL = "all-minilm-l6-v2"
LIMITS = EmbeddingLimits(dimensions=384, vocabulary=30522, max_tokens=256)


def calls(value: Any, **more: Any) -> list[EmbeddingCall]:
    return calls_of_body(json.dumps({"model": MODEL, "input": value, **more}).encode())


def calls_of_body(raw: bytes, limits: EmbeddingLimits = LIMITS) -> list[EmbeddingCall]:
    body = decode_embeddings(raw)
    return embedding_calls(body.input, limits, body.dimensions, body.prompt_name)


def refusal(body: bytes) -> InflightError:
    with pytest.raises(InflightError) as caught:
        calls_of_body(body)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    return caught.value


def refused(value: Any, **more: Any) -> InflightError:
    return refusal(json.dumps({"model": MODEL, "input": value, **more}).encode())


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ("a text", ["a text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [30521]], [[1, 2], [30521]]),
        (" ", [" "]),
    ],
)
def test_each_form_of_input_becomes_rows(value: Any, rows: list[Any]) -> None:
    (call,) = calls(value)
    assert call.rows == rows
    assert call.dimensions == 384


def test_a_long_list_becomes_several_calls_in_order() -> None:
    texts = [f"text {number}" for number in range(2 * ROWS_PER_CALL + 1)]
    made = calls(texts, dimensions=64, encoding_format=None, user="someone")
    assert [len(call.rows) for call in made] == [ROWS_PER_CALL, ROWS_PER_CALL, 1]
    assert [row for call in made for row in call.rows] == texts
    assert {call.dimensions for call in made} == {64}
    assert len(calls(["x"] * MAX_INPUTS)) * ROWS_PER_CALL == MAX_INPUTS


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"{", "the body is not valid JSON", None),
        (b"[]", "the body: expected `object`, got `array`", None),
        (b'{"model": "\xff"}', "the body is not valid UTF-8", None),
        (b'{"model": "m", "input": "\\ud800"}', "the body is not valid JSON", None),
        (b'{"model": "m", "input": ' + b"[" * 20_000, "the JSON is nested too deeply", None),
        (b'{"model": "m"}', "Missing required parameter: input", "input"),
        (b'{"input": "a"}', "Missing required parameter: model", "model"),
        (b'{"model": "m", "input": "a", "x": 1}', "Unrecognized request argument supplied: x", "x"),
    ],
)
def test_an_unreadable_body_is_refused_with_a_reason(body: bytes, message: str, param: str | None) -> None:
    error = refusal(body)
    assert error.message.startswith(message)
    assert error.param == param


FORMS = "a string, a list of strings, a list of token ids, or a list of such lists"


@pytest.mark.parametrize(
    ("value", "message", "param"),
    [
        (None, "input: expected `str | array`, got `null`", "input"),
        ([], f"input: expected {FORMS}, none of them empty", "input"),
        ([None], f"input: expected {FORMS}", "input"),
        ([True], f"input: expected {FORMS}", "input"),
        ([1.5], f"input: expected {FORMS}", "input"),
        ([{}], f"input: expected {FORMS}", "input"),
        ("", "input: an empty string has no embedding; send at least one character", "input"),
        (["a", ""], "input[1]: an empty string has no embedding", "input[1]"),
        (["a", 1], f"input[1]: expected `str`, got `int`; input is {FORMS}", "input[1]"),
        ([1, "a"], "input[1]: expected `int`, got `str`", "input[1]"),
        ([1, True], "input[1]: expected `int`, got `bool`", "input[1]"),
        ([1, -1], "input[1]: expected `int` >= 0", "input[1]"),
        ([[1], [2, -5]], "input[1][1]: expected `int` >= 0", "input[1][1]"),
        ([[1], "a"], "input[1]: expected `array`, got `str`", "input[1]"),
        ([[1], []], "input[1]: there is no token id; allowed: ids from 0 to 30521", "input[1]"),
        ([[]], "input[0]: there is no token id", "input[0]"),
        ([5, 30522], "input: token id 30522 is not in this model's vocabulary; allowed: ids from 0", "input"),
        ([[5], [10**30]], f"input[1]: token id {10**30} is not in", "input[1]"),
        (["a"] * (MAX_INPUTS + 1), f"input: {MAX_INPUTS + 1} inputs; allowed: 1 to {MAX_INPUTS}", "input"),
        ([[1] * 254] * 1172, f"input: {1172 * 256} tokens in total; allowed: at most 300000", "input"),
    ],
)
def test_a_wrong_input_is_refused_by_name(value: Any, message: str, param: str) -> None:
    error = refused(value)
    assert error.message.startswith(message)
    assert error.param == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dimensions": 385}, "dimensions: 385 is more than this model supports; allowed: 1 to 384"),
        ({"dimensions": 0}, "dimensions: expected `int` >= 1"),
        ({"dimensions": "8"}, "dimensions: expected `int | null`, got `str`"),
        ({"encoding_format": "hex"}, "encoding_format: invalid enum value 'hex'; allowed: float, base64"),
        ({"user": 5}, "user: expected `str | null`, got `int`"),
    ],
)
def test_a_wrong_option_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    error = refused("a", **fields)
    assert error.message.startswith(message)
    assert error.param == next(iter(fields))


def test_tokens_of_texts_are_counted_as_their_answers_come() -> None:
    check_total(MAX_TOTAL_TOKENS)
    with pytest.raises(InflightError, match="300001 tokens in total; allowed: at most 300000 per request"):
        check_total(MAX_TOTAL_TOKENS + 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)


@settings(deadline=None)
@given(JSON, JSON, JSON)
def test_any_json_body_is_accepted_or_refused_without_a_server_error(
    value: Any, dimensions: Any, encoding: Any
) -> None:
    fields = {"model": MODEL, "input": value, "dimensions": dimensions, "encoding_format": encoding}
    body = json.dumps(fields).encode("utf-8", "surrogatepass")
    try:
        made = calls_of_body(body)
    except InflightError as error:
        refused_as = error
    else:
        assert made
        assert all(call.rows and call.most_tokens > 0 for call in made)
        return
    assert refused_as.kind is ErrorKind.INVALID_REQUEST
    assert refused_as.message


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=5))
def test_the_reserved_tokens_are_never_fewer_than_those_used(
    embeddings_tokenizer: Any, texts: list[str]
) -> None:
    (call,) = calls(texts)
    counts = [min(256, len(embeddings_tokenizer.encode(text).ids)) for text in texts]
    assert sum(counts) <= call.most_tokens


@pytest.fixture(scope="session")
def embeddings_checkpoint(data_dir: Path) -> Path:
    from tests.embeddings.checkpoints import embeddings_checkpoint

    return embeddings_checkpoint(data_dir)


@pytest.fixture(scope="session")
def embeddings_tokenizer(embeddings_checkpoint: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embeddings_checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def test_long_texts_are_fewer_to_a_call_than_short_ones() -> None:
    """Sixteen of them would keep everybody else waiting for as long as two hundred short ones."""
    long = "many words in a long text " * 80
    made = calls([long] * 5 + ["short"] * 40)
    assert [len(call.rows) for call in made] == [2, 2, ROWS_PER_CALL, ROWS_PER_CALL, 9]
    assert [call.first for call in made] == [0, 2, 4, 20, 36]


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), max_size=60), st.integers(1, ROWS_PER_CALL))
def test_a_list_is_cut_into_calls_without_gaps_and_none_is_too_large(tokens: list[int], most: int) -> None:
    cuts = list(calls_of(tokens, most))
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(len(tokens)))
    for cut in cuts:
        assert 1 <= cut.stop - cut.start <= most
        assert sum(tokens[cut]) <= TOKENS_PER_CALL or cut.stop - cut.start == 1


PROMPTS = EmbeddingLimits(8, 100, 16, prompts={"query": "find: ", "usual": "text: "}, default_prompt="usual")


@pytest.mark.parametrize(("name", "row"), [("query", "find: a"), ("usual", "text: a"), (None, "text: a")])
def test_texts_begin_with_the_prompt_that_is_asked_for(name: str | None, row: str) -> None:
    body = json.dumps({"model": MODEL, "input": "a", "prompt_name": name}).encode()
    (call,) = calls_of_body(body, PROMPTS)
    assert call.rows == [row]
    assert call.most_tokens == len(row) + 2


def test_an_unknown_prompt_and_one_for_token_ids_are_refused() -> None:
    assert "unknown prompt; allowed: none: this model has no prompts" in refused("a", prompt_name="q").message
    assert "not allowed with token ids" in refused([1, 2], prompt_name="q").message
    body = json.dumps({"model": MODEL, "input": "a", "prompt_name": "q"}).encode()
    with pytest.raises(InflightError, match="allowed: 'query', 'usual'"):
        calls_of_body(body, PROMPTS)


def test_limits_on_embeddings_are_those_of_the_checkpoint(embeddings_checkpoint: Path) -> None:
    assert load_limits(embeddings_checkpoint) == LIMITS


VECTORS = np.random.default_rng(3).standard_normal((3, 5)).astype("<f4")
ANSWERS = [
    EmbeddingAnswer(VECTORS[:2].tobytes(), [4, 6]),
    EmbeddingAnswer(VECTORS[2:].tobytes(), [256]),
]


def render(encoding_format: str | None) -> bytes:
    rows = [render_rows(ANSWERS[0], 0, encoding_format), render_rows(ANSWERS[1], 2, encoding_format)]
    return render_whole(MODEL, rows, 266)


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
def test_answers_are_joined_in_order_bit_for_bit(encoding_format: str | None) -> None:
    body = json.loads(render(encoding_format))
    assert body["object"] == "list"
    assert body["model"] == MODEL
    assert body["usage"] == {"prompt_tokens": 266, "total_tokens": 266}
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    assert {item["object"] for item in body["data"]} == {"embedding"}
    for item, expected in zip(body["data"], VECTORS, strict=True):
        found = item["embedding"]
        if encoding_format == "base64":
            found = list(struct.unpack("<5f", base64.b64decode(found)))
        assert found == expected.tolist()


def test_the_official_client_reads_both_encodings() -> None:
    import httpx
    import openai

    def answer(request: httpx.Request) -> httpx.Response:
        body = decode_embeddings(request.content)
        (call,) = calls_of_body(request.content)
        assert call.rows == ["a", "b", "c"]
        content = render(body.encoding_format)
        return httpx.Response(200, content=content, headers={"content-type": "application/json"})

    transport: Any = httpx.Client(transport=httpx.MockTransport(answer))
    with openai.OpenAI(api_key="none", base_url="http://router/v1", http_client=transport) as client:
        whole = client.embeddings.create(model=MODEL, input=["a", "b", "c"])  # asks for base64 by itself
        plain = client.embeddings.create(model=MODEL, input=["a", "b", "c"], encoding_format="float")
    for result in (whole, plain):
        assert [item.embedding for item in result.data] == VECTORS.tolist()
        assert result.usage.total_tokens == 266
