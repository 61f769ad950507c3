"""The trace with repeats, and models that are paced by their profiles."""

from __future__ import annotations

import pytest

from benchmarks.cheaper_answers import LARGE, SURE, UNSURE, Paced, with_repeats
from loadtest.traces import TracedRequest
from router.core.generation import Delta, GenerationCall
from tests.router.running import MODEL

REQUESTS = [TracedRequest(float(number**2), 100 + number, 9 + number) for number in range(200)]


def test_so_many_requests_are_earlier_ones_again_at_the_rate_that_was_asked_for() -> None:
    asked = with_repeats(REQUESTS, per_s=4.0, share=0.3, seed=1)
    assert asked[-1].at_s == pytest.approx(199 / 4)
    repeats = [each for each in asked if each.is_repeat]
    assert 0.2 < len(repeats) / len(asked) < 0.4
    first = {each.question: each.length for each in asked if not each.is_repeat}
    assert all(first[each.question] == each.length for each in repeats)


def test_a_model_takes_the_time_of_its_profile_and_is_unsure_of_the_same_questions_each_time() -> None:
    asked = with_repeats(REQUESTS, 4.0, 0.0, seed=1)
    small, large = (Paced(name, asked, unsure=0.25) for name in (MODEL, LARGE))
    told = []
    for question in range(100):
        call = GenerationCall(
            request_id="a", prompt=f"question {question} word", max_tokens=9, seed=1, top_log_probs=0
        )
        steps = [each for each in small.script(call) if isinstance(each, Delta)]
        assert sum(each.completion_tokens for each in steps) == REQUESTS[question].output_tokens
        told.append(steps[0].tokens[0].log_prob)
        large.script(call)
    assert large.busy_s > 3 * small.busy_s
    assert set(told) == {SURE, UNSURE}
    assert 10 < told.count(UNSURE) < 40
