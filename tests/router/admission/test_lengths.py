"""What is foretold of answers follows what they were, and takes bounded room."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.admission.allocation import bin_of, top_of
from router.admission.forecast import OutputLengths


@given(st.integers(0, 1 << 19))
def test_a_length_falls_into_the_bin_that_ends_at_or_after_it(tokens: int) -> None:
    index = bin_of(tokens)
    assert tokens <= top_of(index)
    assert index == 0 or tokens > top_of(index - 1)
    assert top_of(index) <= 1.25 * tokens + 1


def test_without_samples_a_high_limit_is_not_taken_for_a_long_answer() -> None:
    lengths = OutputLengths()
    assert lengths.expect("a", 32_000).p90 == 1000
    assert lengths.expect("a", 50).p90 == 50


def test_a_tenant_is_predicted_by_its_own_answers_and_a_new_tenant_by_all() -> None:
    lengths = OutputLengths()
    for _ in range(50):
        lengths.learn("short", 1024, 20)
        lengths.learn("long", 1024, 800)
    assert 20 <= lengths.expect("short", 1024).p90 <= 24
    assert 800 <= lengths.expect("long", 1024).p50 <= 1000
    stranger = lengths.expect("stranger", 1024)
    assert stranger.p50 < 30
    assert stranger.p90 >= 800
    assert 300 < stranger.mean < 500


def test_predicted_quantiles_are_those_of_the_answers() -> None:
    chance = random.Random(3)
    lengths = OutputLengths()
    answers = [min(2000, int(chance.lognormvariate(5, 0.7)) + 1) for _ in range(400)]
    for tokens in answers:
        lengths.learn("a", 2000, tokens)
    expected = lengths.expect("a", 2000)
    answers.sort()
    assert answers[200] * 0.95 <= expected.p50 <= answers[200] * 1.3
    assert answers[360] * 0.95 <= expected.p90 <= answers[360] * 1.3
    assert abs(expected.mean - sum(answers) / 400) < 0.1 * sum(answers) / 400


def test_predicted_lengths_follow_a_change() -> None:
    lengths = OutputLengths()
    for tokens in (900, 30):
        for _ in range(3000):
            lengths.learn("a", 1000, tokens)
    assert lengths.expect("a", 1000).p90 < 40


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 6000)), max_size=60),
    st.integers(1, 5000),
    st.integers(0, 6000),
)
def test_predictions_stay_within_the_limit_and_are_at_least_one_token_before_it(
    seen: list[tuple[int, int]], limit: int, generated: int
) -> None:
    lengths = OutputLengths()
    for most, tokens in seen:
        lengths.learn("a", most, tokens)
    expected = lengths.expect("a", limit)
    assert 1 <= expected.p50 <= expected.p90 <= limit
    assert 1 <= expected.mean <= limit
    left = lengths.remaining("a", limit, generated)
    if generated >= limit:
        assert (left.p50, left.p90, left.mean) == (0, 0, 0)
    else:
        assert 1 <= left.p50 <= left.p90 <= limit - generated


def test_an_answer_longer_than_usual_is_predicted_from_other_long_answers() -> None:
    lengths = OutputLengths()
    for number in range(100):
        lengths.learn("a", 4000, 100 if number % 2 else 3000)
    assert lengths.remaining("a", 4000, 0).p50 <= 120
    assert lengths.remaining("a", 4000, 200).p50 > 2500


def test_lengths_are_kept_for_a_bounded_number_of_recent_tenants() -> None:
    lengths = OutputLengths(most_tenants=100)
    for number in range(1000):
        lengths.learn(f"t{number}", 100, 5)
    assert len(lengths) == 100
