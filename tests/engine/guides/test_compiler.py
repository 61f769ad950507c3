from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from llguidance import LLMatcher

from python_backend.engine.guides import GuideCompiler, GuideLimits, GuideState
from python_backend.engine.guides.follower import Follower
from python_backend.engine.guides.token_table import TokenTable
from python_backend.engine.guides.trial import PATIENCE
from python_backend.engine.request import Guide, GuideKind
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.guides.walks import BACKEND, END_ID, VOCABULARY, WAIT_S, compiler_in, state_of, walk
from tests.pace import is_over

LIMITS = GuideLimits(compile_s=1.0, step_s=0.4, share=1.0)  # nobody rests
BUSY_S = 10.0  # what a busy machine may add; without limits it takes minutes
# Each is small, and left to itself takes minutes, gigabytes or the whole stack.
_PRIMES = (101, 103, 107, 109, 113, 127, 131)
MULTIPLES = json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in _PRIMES]})
COSTLY = {
    "a schema of many multiples": Guide(GuideKind.JSON_SCHEMA, MULTIPLES),
    "repetitions of repetitions": Guide(GuideKind.REGEX, "a{1000}{1000}"),
    "an exponential chain of rules": Guide(
        GuideKind.EBNF_GRAMMAR,
        "root ::= r0 root\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(40)) + 'r40 ::= "a"',
    ),
    "a chain of rules too long for the stack": Guide(
        GuideKind.EBNF_GRAMMAR,
        "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} | "x" root\n' for i in range(2600)) + 'r2600 ::= "a"',
    ),
    "brackets without end": Guide(GuideKind.EBNF_GRAMMAR, "root ::= " + "(" * 20_000),
    "nested arrays": Guide(GuideKind.JSON_SCHEMA, '{"items":' * 5_000 + "{}" + "}" * 5_000),
}


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[GuideCompiler]:
    with compiler_in(tmp_path, LIMITS) as compiler:
        yield compiler


@pytest.mark.parametrize("guide", COSTLY.values(), ids=COSTLY)
def test_a_guide_that_costs_too_much_is_refused_in_time_and_the_next_is_compiled(
    compiler: GuideCompiler, guide: Guide
) -> None:
    start_s = time.monotonic()
    with pytest.raises(InflightError) as caught:
        compiler.compile(guide, "owner").result(WAIT_S)
    assert not is_over(start_s, PATIENCE * (LIMITS.compile_s + LIMITS.step_s) + BUSY_S)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    json.loads(walk(state_of(compiler, GuideKind.JSON), seed=1))


def test_a_refusal_for_its_cost_names_the_limit(compiler: GuideCompiler) -> None:
    with pytest.raises(InflightError, match="costs too much to compile; limit 1 s"):
        state_of(compiler, GuideKind.JSON_SCHEMA, MULTIPLES)


def test_costly_guides_keep_others_waiting_no_longer_than_their_limit(compiler: GuideCompiler) -> None:
    evil = [compiler.compile(Guide(GuideKind.JSON_SCHEMA, MULTIPLES + " " * n), "owner") for n in range(3)]
    start_s = time.monotonic()
    compiler.compile(Guide(GuideKind.REGEX, "[0-9]+"), "other", "other").result(WAIT_S)
    assert not is_over(start_s, PATIENCE * 2 * LIMITS.compile_s + BUSY_S)
    for answer in evil:
        assert isinstance(answer.exception(WAIT_S), InflightError)


def test_equal_guides_are_compiled_once_and_followed_apart(compiler: GuideCompiler) -> None:
    guide = Guide(GuideKind.REGEX, "[a-z]{2}")
    answers = [compiler.compile(guide, "owner") for _ in range(20)]
    states = [answer.result(WAIT_S) for answer in answers]
    assert len({walk(state, seed) for seed, state in enumerate(states)}) > 1
    assert compiler.compile(guide, "owner").done()


def test_too_many_guides_at_once_are_refused(tmp_path: Path) -> None:
    limits = GuideLimits(compile_s=0.5, waiting_guides=2, threads=1, share=1.0)
    with compiler_in(tmp_path, limits) as compiler:
        answers = [
            compiler.compile(Guide(GuideKind.JSON_SCHEMA, MULTIPLES + " " * n), "owner") for n in range(4)
        ]
        errors = [answer.exception(WAIT_S) for answer in answers]
        kinds = [error.kind for error in errors if isinstance(error, InflightError)]
        assert kinds == [*[ErrorKind.INVALID_REQUEST] * 3, ErrorKind.RATE_LIMITED]
        state_of(compiler, GuideKind.REGEX, "a")


def test_a_guide_does_not_wait_for_those_of_another_tenant(tmp_path: Path) -> None:
    with compiler_in(tmp_path, GuideLimits(compile_s=1, threads=2)) as compiler:
        costly = [
            compiler.compile(Guide(GuideKind.JSON_SCHEMA, MULTIPLES + " " * n), "greedy", "greedy")
            for n in range(20)
        ]
        compiler.compile(Guide(GuideKind.REGEX, "a"), "other", "other").result(WAIT_S)
        assert not costly[1].done()
        for answer in costly[1:]:
            assert answer.cancel()  # its client left
        assert compiler._queue.waiting("greedy") == 0


def test_whoevers_guides_are_costly_waits_between_them_and_nobody_else_does(tmp_path: Path) -> None:
    """`free_s` 0: every guide counts as costly; the share is so small that nobody sees the end of a rest."""
    with compiler_in(tmp_path, GuideLimits(share=1e-9, free_s=0.0)) as compiler:
        compiler.compile(Guide(GuideKind.REGEX, "a"), "greedy", "greedy").result(WAIT_S)
        next_one = compiler.compile(Guide(GuideKind.REGEX, "b"), "greedy", "greedy")
        compiler.compile(Guide(GuideKind.REGEX, "c"), "other", "other").result(WAIT_S)
        assert not next_one.done()
        # What is compiled already costs nothing.
        compiler.compile(Guide(GuideKind.REGEX, "a"), "greedy", "greedy").result(WAIT_S)
        assert next_one.cancel()


def test_a_rest_ends(tmp_path: Path) -> None:
    with compiler_in(tmp_path, GuideLimits(share=0.5, free_s=0.0)) as compiler:
        for text in "abc":
            compiler.compile(Guide(GuideKind.REGEX, text), "greedy", "greedy").result(WAIT_S)


def test_costly_guides_of_one_tenant_take_a_share_of_a_processor_and_others_nothing() -> None:
    limits = GuideLimits(share=0.2, free_s=0.03)
    assert limits.rest_s(1.0) == pytest.approx(4.0)
    assert limits.rest_s(0.03) == 0


def test_an_equal_guide_of_another_tenant_is_compiled_anew(tmp_path: Path) -> None:
    """How long it takes would tell what another tenant asks for."""
    with compiler_in(tmp_path) as compiler:
        for tenant in ("one", "two", "one"):
            compiler.compile(Guide(GuideKind.REGEX, "a"), tenant).result(WAIT_S)
        assert [tenant for tenant, _ in compiler._jobs] == ["two", "one"]


def test_guides_of_one_tenant_do_not_push_out_anothers(tmp_path: Path) -> None:
    with compiler_in(tmp_path, GuideLimits(cached_guides=3)) as compiler:
        compiler.compile(Guide(GuideKind.REGEX, "kept"), "other").result(WAIT_S)
        for text in "abcd":
            compiler.compile(Guide(GuideKind.REGEX, text), "greedy").result(WAIT_S)
        assert [guide.text for _, guide in compiler._jobs] == ["kept", "c", "d"]


def test_of_guides_that_took_long_fewer_are_kept(tmp_path: Path) -> None:
    limits = GuideLimits(cached_guides=100, cached_s=1e-9, free_s=10)
    with compiler_in(tmp_path, limits) as compiler:
        for text in "ab":
            compiler.compile(Guide(GuideKind.REGEX, text), "greedy").result(WAIT_S)
        compiler.compile(Guide(GuideKind.REGEX, "c"), "other").result(WAIT_S)
    assert not compiler._jobs
    assert GuideLimits(cached_guides=64, cached_s=4).weight(1.0) == 1 / 4


def test_the_least_recently_used_guide_is_forgotten_and_compiled_again(tmp_path: Path) -> None:
    with compiler_in(tmp_path, GuideLimits(cached_guides=2, threads=1)) as compiler:
        for text in ("a", "b", "a", "c", "b", "a"):
            assert walk(state_of(compiler, GuideKind.REGEX, text), seed=0) == text


def test_an_answer_whose_guide_becomes_too_costly_is_given_up_in_time(tmp_path: Path) -> None:
    BACKEND.save(str(tmp_path / "tokenizer.json"))
    table = TokenTable(tmp_path / "tokenizer.json", VOCABULARY, [END_ID])
    follower = Follower(GuideLimits(step_s=0.3, following_threads=2))
    try:
        grammars = (LLMatcher.grammar_from_regex(text) for text in ("a{1000}{1000}", "ab"))
        matchers = (LLMatcher(table.tokenizer, grammar) for grammar in grammars)
        slow, quick = (GuideState(follower.begin(matcher, table), follower) for matcher in matchers)
        start_s = time.monotonic()
        with pytest.raises(InflightError, match=r"costs too much to follow; limit for one token 0\.3 s"):
            slow.bits(END_ID)
        assert not is_over(start_s, BUSY_S), "left to itself it takes minutes"
        assert quick.bits(END_ID).any()
    finally:
        follower.close()


def test_what_is_compiled_for_one_owner_saves_no_other_the_time(compiler: GuideCompiler) -> None:
    """Else the time until the first token would tell which schemas others use."""
    guide = Guide(GuideKind.REGEX, "[0-9]{7}")
    compiler.compile(guide, "one").result(WAIT_S)
    assert compiler.compile(guide, "one").done()
    other = compiler.compile(guide, "two")
    assert compiler._jobs[("two", guide)] is not compiler._jobs[("one", guide)]
    other.result(WAIT_S)


def test_a_guide_that_many_follow_is_compiled_several_times_so_that_they_do_not_wait_for_each_other(
    tmp_path: Path,
) -> None:
    with compiler_in(tmp_path, GuideLimits(following_threads=3, free_s=1e6)) as compiler:
        guide = Guide(GuideKind.REGEX, "[a-z]{2}")
        answers = [compiler.compile(guide, "owner") for _ in range(7)]
        states = [answer.result(WAIT_S) for answer in answers]
        job = compiler._jobs["owner", guide]
        began_s = time.monotonic()
        while len(job.stems) < 3:  # one after the other, as answers ask for them
            assert not is_over(began_s, WAIT_S)
            states.append(compiler.compile(guide, "owner").result(WAIT_S))
        assert len({walk(state, seed) for seed, state in enumerate(states)}) > 1
        assert len(job.stems) == 3


def test_a_costly_guide_is_compiled_once_however_many_follow_it(tmp_path: Path) -> None:
    with compiler_in(tmp_path, GuideLimits(following_threads=3, free_s=0.0, share=1.0)) as compiler:
        guide = Guide(GuideKind.REGEX, "[a-z]{2}")
        for answer in [compiler.compile(guide, "owner") for _ in range(7)]:
            answer.result(WAIT_S)
        assert len(compiler._jobs["owner", guide].stems) == 1
    assert GuideLimits().stems(0.001) == GuideLimits().following_threads
    assert GuideLimits().stems(0.02) == 1
