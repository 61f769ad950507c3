"""Which replica gets a request."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.generation import byte_tokens, text_tokens
from router.routing.replica_choice import (
    EXPECTED_TOKENS,
    LEAST_TOKENS,
    Opening,
    answer_tokens,
    choose,
    most_tokens,
)


@dataclass(frozen=True)
class Candidate:
    name: str
    outstanding_tokens: int
    begun: int = 0


NAMES = st.lists(st.text("abcdef0123456789.:", min_size=1, max_size=20), min_size=1, max_size=6, unique=True)
OPENINGS = st.builds(Opening, st.binary(max_size=30), st.integers(0, 4000))


def test_without_replicas_none_is_chosen() -> None:
    assert choose([], Opening(b"so", 9)) is None


@settings(deadline=None)
@given(NAMES, st.lists(st.tuples(st.none() | OPENINGS, st.integers(1, 3000)), max_size=60))
def test_no_replica_starves_and_none_is_overloaded(
    names: list[str], requests: list[tuple[Opening | None, int]]
) -> None:
    """Whatever the openings: none gets work that has more than its share beside the least loaded."""
    outstanding = dict.fromkeys(names, 0)
    begun = dict.fromkeys(names, 0)
    for opening, tokens in requests:
        candidates = [Candidate(name, outstanding[name], begun[name]) for name in names]
        chosen = choose(candidates, opening)
        assert chosen is not None
        least = min(outstanding.values())
        most = least if opening is None else most_tokens(least, opening.tokens)
        assert outstanding[chosen.name] <= most
        outstanding[chosen.name] += tokens
        begun[chosen.name] += 1
    if sum(outstanding.values()) > len(names) * (4000 + 3000):
        assert min(begun.values()) > 0


@given(NAMES, st.integers(1, 40))
def test_requests_without_an_opening_rotate_over_idle_replicas(names: list[str], requests: int) -> None:
    begun = dict.fromkeys(names, 0)
    for _ in range(requests):
        chosen = choose([Candidate(name, 0, begun[name]) for name in names], None)
        assert chosen is not None
        begun[chosen.name] += 1
    assert max(begun.values()) - min(begun.values()) <= 1


@settings(deadline=None)
@given(NAMES, OPENINGS, st.data())
def test_an_opening_stays_with_its_replica_when_another_leaves(
    names: list[str], opening: Opening, data: st.DataObject
) -> None:
    candidates = [Candidate(name, 0) for name in names]
    home = choose(candidates, opening)
    assert home is not None
    others = [each for each in candidates if each is not home]
    gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
    left = [each for each in candidates if each not in gone]
    assert choose(left, opening) is home


@settings(deadline=None)
@given(NAMES.filter(lambda names: len(names) > 1), OPENINGS, st.integers(0, 50_000))
def test_an_opening_leaves_a_replica_that_has_more_to_do_than_its_prompt(
    names: list[str], opening: Opening, least: int
) -> None:
    home = choose([Candidate(name, 0) for name in names], opening)
    assert home is not None

    def with_load(tokens: int) -> str:
        them = [Candidate(name, tokens if name == home.name else least) for name in names]
        chosen = choose(them, opening)
        assert chosen is not None
        return chosen.name

    assert with_load(most_tokens(least, opening.tokens)) == home.name
    assert with_load(most_tokens(least, opening.tokens) + 1) != home.name


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_openings_are_spread_over_all_replicas(count: int) -> None:
    candidates = [Candidate(f"triton-{number}", 0) for number in range(count)]
    chosen = [choose(candidates, Opening(f"prompt {number}".encode(), 9)) for number in range(4000)]
    share = 4000 / count
    assert all(0.85 * share < chosen.count(each) < 1.15 * share for each in candidates)


def test_a_request_counts_for_its_prompt_and_its_possible_answer() -> None:
    assert text_tokens("a" * 300) == byte_tokens(300) == 101
    assert text_tokens("汉" * 300) == 300
    assert answer_tokens(max_tokens=100, context_tokens=8192) == 100
    assert answer_tokens(max_tokens=1_000_000, context_tokens=8192) == EXPECTED_TOKENS
    assert answer_tokens(max_tokens=1, context_tokens=8192) == LEAST_TOKENS
