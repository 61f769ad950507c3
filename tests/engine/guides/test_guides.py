from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from python_backend.engine.guides import GuideCompiler, GuideLimits
from python_backend.engine.request import GenerationRequest, Guide, GuideKind, SamplingParams
from python_backend.engine.sampling.tokens import Choice, choose_tokens
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.guides.walks import (
    BACKEND,
    END_ID,
    VOCABULARY,
    WAIT_S,
    compiler_in,
    feed,
    id_of,
    state_of,
    tokens_allowed,
    walk,
)
from tests.text.tokenizer_kinds import SPECIAL

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
ARITHMETIC = """
# sums, as a user of another library writes them
root ::= term (op term){0,3}   # a comment | with a bar
term ::= number
       | "(" root ")"
op   ::= " + " | "-"
number ::= [0-9]
           [0-9]?
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuideCompiler]:
    with compiler_in(tmp_path_factory.mktemp("checkpoint")) as compiler:
        yield compiler


def refused(compiler: GuideCompiler, kind: GuideKind, text: str) -> InflightError:
    with pytest.raises(InflightError) as caught:
        state_of(compiler, kind, text)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    assert len(caught.value.message) < 400
    return caught.value


@pytest.mark.parametrize("seed", range(15))
def test_every_answer_under_json_is_an_object_or_an_array(compiler: GuideCompiler, seed: int) -> None:
    assert isinstance(json.loads(walk(state_of(compiler, GuideKind.JSON), seed)), dict | list)


@pytest.mark.parametrize("seed", range(15))
def test_every_answer_under_a_schema_follows_it(compiler: GuideCompiler, seed: int) -> None:
    person = json.loads(walk(state_of(compiler, GuideKind.JSON_SCHEMA, PERSON), seed))
    assert {"name", "age"} <= person.keys() <= {"name", "age", "tags"}
    assert 1 <= len(person["name"]) <= 12
    assert type(person["age"]) is int
    assert 0 <= person["age"] <= 150
    assert set(person.get("tags", [])) <= {"a", "b"}
    assert len(person.get("tags", [])) <= 3


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "pattern", [r"[0-9]{3}-[a-f]+!", r"(yes|no|日本語){1,3}", r"\d{1,2}:\d\d", r"", r"^[A-Z][a-z]*\.$"]
)
def test_every_answer_under_a_regex_matches_all_of_it(
    compiler: GuideCompiler, pattern: str, seed: int
) -> None:
    answer = walk(state_of(compiler, GuideKind.REGEX, pattern), seed)
    assert re.fullmatch(pattern, answer)


@pytest.mark.parametrize("seed", range(15))
def test_every_answer_under_a_grammar_is_a_sentence_of_it(compiler: GuideCompiler, seed: int) -> None:
    answer = walk(state_of(compiler, GuideKind.EBNF_GRAMMAR, ARITHMETIC), seed)
    innermost = re.compile(r"\(\d\d?((?: \+ |-)\d\d?){0,3}\)")
    while innermost.search(answer):
        answer = innermost.sub("1", answer)
    assert re.fullmatch(r"\d\d?((?: \+ |-)\d\d?){0,3}", answer)


@pytest.mark.parametrize(
    ("grammar", "word"),
    [
        (r'root ::= "a\"b" [^"\n] "\\"', 'a"bé\\'),
        (r'root ::= "\u00e9" [\u4e00-\u9fff] "\x41"', "é中A"),
        ('root ::= "#" | "|"', "|"),
        ('root ::= some-item\nsome-item ::= "x" | "y" some-item', "yyx"),
        ('\n\nroot ::=\n  "a"\n  "b"\n\n\n', "ab"),
        ("root ::= [#|/] .", "/x"),
        ('root\t::= ("a" | \n "b")+ \r\n', "ab"),
        ('start: "a ::= " WORD\nWORD: /[b-d]+/', "a ::= bcd"),
    ],
)
def test_grammars_are_read_in_the_usual_notations(compiler: GuideCompiler, grammar: str, word: str) -> None:
    state = state_of(compiler, GuideKind.EBNF_GRAMMAR, grammar)
    feed(state, word)
    assert END_ID in tokens_allowed(state)


def test_pretty_printed_json_is_allowed_and_endless_whitespace_is_not(compiler: GuideCompiler) -> None:
    pretty = json.dumps({"name": "x", "age": 3, "tags": ["a", "b"]}, indent=4)
    feed(state_of(compiler, GuideKind.JSON_SCHEMA, PERSON), pretty)
    state = state_of(compiler, GuideKind.JSON_SCHEMA, PERSON)
    feed(state, "{")
    blanks = [token for token in range(VOCABULARY) if (BACKEND.id_to_token(token) or "x").strip("ĠĊ") == ""]
    for length in range(60):
        allowed = [token for token in blanks if token in tokens_allowed(state)]
        if not allowed:
            break
        state.advance(Random(length).choice(allowed))
    else:
        raise AssertionError("blanks without end")


def test_the_end_is_allowed_exactly_where_a_match_ends(compiler: GuideCompiler) -> None:
    state = state_of(compiler, GuideKind.REGEX, "[ax][by](cd)?")
    assert END_ID not in tokens_allowed(state)
    feed(state, "a")
    assert END_ID not in tokens_allowed(state)
    feed(state, "b")
    assert END_ID in tokens_allowed(state)
    assert len(tokens_allowed(state)) > 1
    feed(state, "cd")
    assert tokens_allowed(state) == [END_ID]


@pytest.mark.parametrize("end_id", [None, -1, VOCABULARY])
def test_without_an_end_id_no_token_is_allowed_after_a_complete_match(
    compiler: GuideCompiler, end_id: int | None
) -> None:
    state = state_of(compiler, GuideKind.REGEX, "a")
    feed(state, "a")
    assert tokens_allowed(state, end_id) == []


def test_an_end_id_other_than_the_tokenizers_own_works(compiler: GuideCompiler) -> None:
    other = SPECIAL.index("<s>")
    state = state_of(compiler, GuideKind.REGEX, "a?")
    assert other in tokens_allowed(state, other)
    assert END_ID not in tokens_allowed(state, other)


def test_special_tokens_and_ids_beyond_the_tokenizer_are_never_allowed(compiler: GuideCompiler) -> None:
    state = state_of(compiler, GuideKind.REGEX, r"(.|\n)*")
    allowed = tokens_allowed(state)
    assert set(allowed) & set(range(len(SPECIAL))) == {END_ID}
    assert max(allowed) < VOCABULARY - 100
    assert len(state.bits(END_ID)) == -(-VOCABULARY // 32)


def test_a_forked_guide_state_advances_independently(compiler: GuideCompiler) -> None:
    state = state_of(compiler, GuideKind.REGEX, "a(bc|de)")
    feed(state, "a")
    fork = state.fork()
    feed(state, "bc")
    feed(fork, "de")
    assert tokens_allowed(state) == tokens_allowed(fork) == [END_ID]


def test_tokens_given_in_a_row_are_accepted_in_order(compiler: GuideCompiler) -> None:
    states = [state_of(compiler, GuideKind.REGEX, "0123456789abcdef") for _ in range(12)]
    for digit in "0123456789abcdef":
        for state in states:
            state.advance(id_of(digit))
    assert [tokens_allowed(state) for state in states] == [[END_ID]] * 12


def test_a_forbidden_token_ends_its_own_answer_alone(compiler: GuideCompiler) -> None:
    lost, other = (state_of(compiler, GuideKind.REGEX, "ab") for _ in range(2))
    lost.advance(id_of("z"))
    other.advance(id_of("a"))
    for _ in range(2):
        with pytest.raises(InflightError, match="cannot be followed"):
            lost.bits(END_ID)
    with pytest.raises(InflightError, match="cannot be followed"):
        lost.fork()
    assert id_of("b") in tokens_allowed(other)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (GuideKind.JSON_SCHEMA, '{"type": "objekt"}', "objekt"),
        (GuideKind.JSON_SCHEMA, "{not json", "line 1"),
        (GuideKind.JSON_SCHEMA, "[1]", "object schema"),
        (GuideKind.JSON_SCHEMA, '{"$ref": "#/nowhere"}', "nowhere"),
        (GuideKind.JSON_SCHEMA, '{"$ref": "#"}', ""),
        (GuideKind.JSON_SCHEMA, '{"type": "string", "minLength": 3, "maxLength": 2}', ""),
        (GuideKind.REGEX, "(a", "unclosed group"),
        (GuideKind.REGEX, "(?=a)b", "look-around"),
        (GuideKind.EBNF_GRAMMAR, 'start ::= "a"', "root"),
        (GuideKind.EBNF_GRAMMAR, 'root ::= ("a"', "Expected"),
        (GuideKind.EBNF_GRAMMAR, "root ::= missing", "missing"),
        (GuideKind.EBNF_GRAMMAR, "", "root"),
        (GuideKind.EBNF_GRAMMAR, "start: missing", "missing"),
        (GuideKind.REGEX, "a" * 70_000, "70000 bytes; allowed: at most 65536"),
    ],
)
def test_a_guide_that_cannot_be_compiled_is_refused_with_the_reason(
    compiler: GuideCompiler, kind: GuideKind, text: str, reason: str
) -> None:
    assert reason in refused(compiler, kind, text).message


def choose(state_kind: tuple[GuideKind, str], compiler: GuideCompiler, request: GenerationRequest) -> Choice:
    sequence = Sequence(0, 0, request, 50)
    sequence.guide = state_of(compiler, *state_kind)
    logits = np.random.default_rng(0).standard_normal((1, VOCABULARY)).astype(np.float32)
    return choose_tokens(logits, [sequence])[0]


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_p=0.9)], ids=str)
def test_greedy_and_sampled_rows_take_only_what_the_guide_allows(
    compiler: GuideCompiler, sampling: SamplingParams
) -> None:
    request = GenerationRequest([5], 50, END_ID, sampling=sampling)
    assert choose((GuideKind.REGEX, "q"), compiler, request).token_id == id_of("q")


def test_a_guide_that_allows_nothing_more_ends_the_answer(compiler: GuideCompiler) -> None:
    empty = (GuideKind.REGEX, "")
    at_once = SamplingParams(min_tokens=0)
    assert choose(empty, compiler, GenerationRequest([5], 50, END_ID, sampling=at_once)) == Choice(END_ID)
    assert choose(empty, compiler, GenerationRequest([5], 50, None)) == Choice(ends_guide=True)
    # Too early for the end, and nothing else is allowed: the answer ends all the same.
    assert choose(empty, compiler, GenerationRequest([5], 50, END_ID)) == Choice(ends_guide=True)


def test_a_guide_and_bad_words_that_leave_no_token_are_an_error_before_the_answers_end(
    compiler: GuideCompiler,
) -> None:
    request = GenerationRequest([5], 50, END_ID, bad_sequences=((id_of("q"),),))
    choice = choose((GuideKind.REGEX, "q"), compiler, request)
    assert (choice.token_id, choice.ends_guide) == (None, False)
    assert choice.error is not None
    assert choice.error.to_text() == (
        "invalid_request: bad_words_list, embedding_bias, min_tokens and guided_decoding_guide together "
        "leave no token to choose"
    )
    # Where the answer may end, it does.
    assert choose((GuideKind.REGEX, "q?"), compiler, request) == Choice(ends_guide=True)


def test_a_guide_state_knows_whether_the_answer_may_end(compiler: GuideCompiler) -> None:
    state = state_of(compiler, GuideKind.REGEX, "ab?")
    assert not state.may_end
    feed(state, "a")
    assert state.may_end


def test_a_broken_guide_is_an_error_of_its_own_row(compiler: GuideCompiler) -> None:
    lost, other = (Sequence(key, 0, GenerationRequest([5], 50, END_ID), 50) for key in range(2))
    lost.guide = state_of(compiler, GuideKind.REGEX, "ab")
    lost.guide.advance(id_of("z"))
    logits = np.random.default_rng(0).standard_normal((2, VOCABULARY)).astype(np.float32)
    logits[:, END_ID] = -9
    broken, whole = choose_tokens(logits, [lost, other])
    assert broken.token_id is None
    assert isinstance(broken.error, InflightError)
    assert whole == Choice(int(logits[1].argmax()))


def test_an_unsupported_tokenizer_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    compiler = GuideCompiler(tmp_path / "tokenizer.json", 100, [1], GuideLimits(threads=1))
    with pytest.raises(InflightError, match="does not work with this model's tokenizer") as caught:
        compiler.compile(Guide(GuideKind.JSON), "owner").result(WAIT_S)
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    compiler.close()
