from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.request import GenerationRequest
from python_backend.engine.sequence.token_rules import TokenCounts, TokenRules, WordIndex

VOCABULARY = 4

token_ids = st.integers(-1, VOCABULARY)
texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8)
words = st.lists(st.lists(token_ids, max_size=4).map(tuple), max_size=6).map(tuple)


@settings(deadline=None)
@given(texts, words, st.integers(0, 8))
def test_stop_words_are_found_as_by_a_search_for_each(
    tokens: list[int], stops: tuple[tuple[int, ...], ...], within: int
) -> None:
    expected = any(0 < len(stop) <= within and tokens[-len(stop) :] == list(stop) for stop in stops)
    assert WordIndex(stops).at_end_of(tokens, within) == expected


@settings(deadline=None)
@given(texts, words)
def test_bans_are_found_as_by_a_search_for_each_bad_word(
    tokens: list[int], bad_words: tuple[tuple[int, ...], ...]
) -> None:
    rules = TokenRules(GenerationRequest(tokens, 1, bad_sequences=bad_words), VOCABULARY)
    expected = {
        bad[-1]
        for bad in bad_words
        if bad and (len(bad) == 1 or tuple(tokens[1 - len(bad) :]) == bad[:-1]) and 0 <= bad[-1] < VOCABULARY
    }
    assert {*rules.banned.tolist(), *rules.completing(tokens)} == expected


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=90), min_size=1, max_size=4), st.integers(0, 3))
def test_token_counts_follow_a_growing_list(parts: list[list[int]], start: int) -> None:
    tokens = [0, 1, 2]
    counts = TokenCounts(start)
    for part in parts:
        tokens += part
        ids, times = counts.follow(tokens)
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == Counter(tokens[start:])
