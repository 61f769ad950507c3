"""Many answers followed at once: each as if it were alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, cast

import pytest
from llguidance import LLMatcher

from python_backend.engine.guides import GuideCompiler, GuideLimits, GuideState
from python_backend.engine.guides import follower as follower_module
from python_backend.engine.guides.follower import Finding, Follower, GuideCost, Search
from python_backend.engine.guides.token_table import TokenTable
from python_backend.engine.request import GuideKind
from python_backend.wire.errors import InflightError
from tests.engine.guides.walks import (
    BACKEND,
    CLOSING,
    END_ID,
    VOCABULARY,
    WAIT_S,
    compiler_in,
    id_of,
    state_of,
    tokens_allowed,
)

ENOUGH = 40  # tokens after which an answer is led to its end


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuideCompiler]:
    with compiler_in(tmp_path_factory.mktemp("checkpoint")) as compiler:
        yield compiler


@pytest.fixture
def table(tmp_path: Path) -> TokenTable:
    BACKEND.save(str(tmp_path / "tokenizer.json"))
    return TokenTable(tmp_path / "tokenizer.json", VOCABULARY, [END_ID])


def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many answers each search with others was for; every guide is quick, however busy the machine."""
    monkeypatch.setattr(follower_module, "_QUICK_S", 1e6)
    found: list[int] = []
    find_all = Follower._find_all

    def note(self: Follower, told: list[object], search: Search) -> None:
        found.append(len(told))
        find_all(self, told, search)  # type: ignore[arg-type]

    monkeypatch.setattr(Follower, "_find_all", note)
    return found


def walk_together(compiler: GuideCompiler, states: list[GuideState], seed: int) -> list[str]:
    """An answer under each state, all of them a token further in each round, as the engine's steps are."""
    dice, ids = Random(seed), [list[int]() for _ in states]
    going_on = set(range(len(states)))
    while going_on:
        for index in sorted(going_on):
            allowed = tokens_allowed(states[index])
            assert allowed, f"no token may follow {BACKEND.decode(ids[index])!r}"
            closing = [token for token in allowed if token in CLOSING]
            prefers_end = closing and (dice.random() < 0.3 or len(ids[index]) > ENOUGH)
            token_id = dice.choice(closing if prefers_end else allowed)
            if token_id == END_ID:
                going_on.remove(index)
                continue
            ids[index].append(token_id)
            states[index].advance(token_id)
            assert len(ids[index]) < 400, "no end in sight"
        compiler.follow()
    return [BACKEND.decode(each, skip_special_tokens=False) for each in ids]


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_are_followed_together_follow_their_own_guides(
    compiler: GuideCompiler, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = searches(monkeypatch)
    pattern = "(yes|no|[a-f]{2,9}[0-9]){2,40}!"
    states = [state_of(compiler, GuideKind.REGEX, pattern) for _ in range(6)]
    states += [state_of(compiler, GuideKind.JSON) for _ in range(6)]
    answers = walk_together(compiler, states, seed)
    assert all(re.fullmatch(pattern, answer) for answer in answers[:6])
    assert all(isinstance(json.loads(answer), dict | list) for answer in answers[6:])
    assert max(together) > 6, "nothing was followed together"


def test_a_forbidden_token_ends_its_own_answer_alone_among_those_followed_together(
    compiler: GuideCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = searches(monkeypatch)
    states = [state_of(compiler, GuideKind.REGEX, "(ab)*") for _ in range(4)]
    for number in range(12):
        for state in states:
            state.advance(id_of("ab"[number % 2]))
        compiler.follow()
        assert all(tokens_allowed(state) for state in states)
    for state in states[1:]:
        state.advance(id_of("a"))
    states[0].advance(id_of("z"))
    compiler.follow()
    with pytest.raises(InflightError, match="cannot be followed any further"):
        states[0].bits(END_ID)
    assert all(id_of("b") in tokens_allowed(state) for state in states[1:])
    assert together[-1] == 4


def test_who_asks_need_not_have_it_followed_first(compiler: GuideCompiler) -> None:
    state = state_of(compiler, GuideKind.REGEX, "abc")
    for token in "ab":
        state.advance(id_of(token))
    state.wait(WAIT_S)
    assert state.is_ready
    assert tokens_allowed(state) == [id_of("c")]


def is_low(cost: GuideCost) -> bool:
    return cost.is_low


def is_high(cost: GuideCost) -> bool:
    return cost.is_high


def is_ready(state: GuideState) -> bool:
    return state.is_ready


def test_a_guide_is_followed_with_others_once_it_was_quick_a_few_times_in_a_row() -> None:
    cost = GuideCost()
    for _ in range(7):
        cost.note(0.001)
    assert not is_low(cost)
    cost.note(0.001)
    assert is_low(cost)
    cost.note(0.1)
    assert not is_low(cost)


def test_a_search_that_takes_long_makes_doubtful_whoever_was_part_of_it(table: TokenTable) -> None:
    follower = Follower(GuideLimits(following_threads=2))
    try:
        grammar = LLMatcher.grammar_from_regex("[a-z]*")
        positions = [follower.begin(LLMatcher(table.tokenizer, grammar), table) for _ in range(2)]
        for position in positions:
            position.finding.result(WAIT_S)
            for _ in range(8):
                position.cost.note(0.0)
            follower.tell(position, id_of("a"))
        executor = follower._executor

        class Slow:
            consume_token_par = executor.consume_token_par

            def unsafe_compute_mask_ptr(self, *arguments: object) -> None:
                time.sleep(0.05)
                executor.unsafe_compute_mask_ptr(*arguments)  # type: ignore[arg-type]

        follower.__dict__["_executor"] = Slow()
        follower.follow()
        assert all(position.finding.result(WAIT_S).tokens.any() for position in positions)
        assert positions[0].finding.search is positions[1].finding.search
        assert not any(position.cost.is_low for position in positions)
    finally:
        follower.close()


class Stuck:
    """A matcher whose next tokens take until `found` is set."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.found = Event()

    def consume_token(self, token_id: int) -> bool:
        return self._matcher.consume_token(token_id)

    def compute_bitmask(self) -> bytes:
        assert self.found.wait(WAIT_S)
        return self._matcher.compute_bitmask()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def test_answers_under_slow_guides_wait_for_each_other_and_keep_nobody_else_waiting(
    table: TokenTable,
) -> None:
    follower = Follower(GuideLimits(following_threads=2))
    grammar = LLMatcher.grammar_from_regex("[a-z]*")
    slow, stuck = [], []
    try:
        for _ in range(6):
            slow.append(follower.begin(LLMatcher(table.tokenizer, grammar), table))
            slow[-1].finding.result(WAIT_S)
            slow[-1].cost.note(0.2)
            stuck.append(Stuck(slow[-1].matcher))
            slow[-1].matcher = cast(LLMatcher, stuck[-1])
            follower.tell(slow[-1], id_of("a"))
        follower.follow()
        other = follower.begin(LLMatcher(table.tokenizer, grammar), table)
        other.finding.result(WAIT_S)
        for _ in range(10):
            follower.tell(other, id_of("a"))
            follower.follow()
            assert other.finding.result(WAIT_S).tokens.any()
        assert not any(each.finding.is_done for each in slow)
    finally:
        for each in stuck:
            each.found.set()
        assert all(each.finding.result(WAIT_S).tokens.any() for each in slow)
        follower.close()


def test_a_guide_that_takes_longer_than_it_should_again_and_again_is_slow_for_good() -> None:
    cost = GuideCost()
    for _ in range(1_000):
        cost.note(0.0015)
    cost.note(0.03)  # once, as a guide's first token may
    assert not is_high(cost)
    for _ in range(4):
        cost.note(0.02)
    assert is_high(cost)
    for _ in range(100):
        cost.note(0.0)
    assert is_high(cost)
    assert not is_low(cost)


def test_what_waits_behind_others_is_not_given_up_before_it_had_its_own_time(table: TokenTable) -> None:
    follower = Follower(GuideLimits(step_s=50.0, following_threads=2))
    try:
        grammar = LLMatcher.grammar_from_regex("[a-z]*")
        position = follower.begin(LLMatcher(table.tokenizer, grammar), table)
        position.finding.result(WAIT_S)
        position.finding = Finding(waiting := Search())
        state = GuideState(position, follower)
        waiting.asked_s -= 10 * 50
        assert not is_ready(state)
        waiting.began_s = time.monotonic() - 60  # it began, and takes longer than it may
        assert is_ready(state)
        with pytest.raises(InflightError, match=r"limit for one token 50 s"):
            state.bits(END_ID)
        waiting.began_s, waiting.asked_s = None, time.monotonic() - 21 * 50
        with pytest.raises(InflightError, match=r"limit for one token 50 s"):
            state.bits(END_ID)
    finally:
        follower.close()
