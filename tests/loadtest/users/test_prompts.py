from __future__ import annotations

from statistics import median

import pytest

from loadtest.traces import Trace, TracedRequest
from loadtest.users.prompts import PromptWriter


def writer(seed: str = "0/1", **options: object) -> PromptWriter:
    return PromptWriter(seed, 64, 48, 256, **options)  # type: ignore[arg-type]  # by name


def test_prompt_lengths_are_near_their_median_and_never_beyond_the_longest() -> None:
    user = writer()
    drawn = [user.lengths() for _ in range(2000)]
    assert median(each.prompt_tokens for each in drawn) == pytest.approx(64, rel=0.15)
    assert median(each.answer_tokens for each in drawn) == pytest.approx(48, rel=0.15)
    assert max(each.prompt_tokens for each in drawn) <= 256


def test_lengths_of_a_trace_stay_together() -> None:
    trace = Trace("t", (TracedRequest(0, 10, 3), TracedRequest(1, 900, 7)))
    user = writer(trace=trace)
    drawn = {(each.prompt_tokens, each.answer_tokens) for each in (user.lengths() for _ in range(50))}
    assert drawn == {(10, 3), (256, 7)}


def test_no_two_prompts_begin_alike_so_that_no_cache_flatters() -> None:
    beginnings = {writer(f"0/{user}").text(40)[:60] for user in range(200)}
    again = writer("0/1")
    beginnings |= {again.text(40)[:60] for _ in range(200)}
    assert len(beginnings) >= 399  # the first of the last user is that of one before


def test_the_same_seed_gives_the_same_prompts() -> None:
    one, other = writer(), writer()
    assert (one.lengths(), one.text(9), one.pause_s(1), one.number()) == (
        other.lengths(),
        other.text(9),
        other.pause_s(1),
        other.number(),
    )


def test_users_of_a_tenant_share_a_beginning_on_request() -> None:
    one = writer("0/1", shared_tokens=20, shared_seed="0/acme")
    other = writer("0/2", shared_tokens=20, shared_seed="0/acme")
    stranger = writer("0/3", shared_tokens=20, shared_seed="0/bolt")
    assert one.shared_text == other.shared_text != stranger.shared_text
    assert len(one.shared_text.split()) == 20
    assert writer().shared_text == ""


def test_pauses_are_near_their_mean_and_bounded() -> None:
    user = writer()
    pauses = [user.pause_s(2.0) for _ in range(2000)]
    assert sum(pauses) / len(pauses) == pytest.approx(2.0, rel=0.1)
    assert max(pauses) <= 20.0
    assert user.pause_s(0) == 0.0


def test_a_length_of_zero_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="--answer-tokens is 0"):
        PromptWriter("s", 1, 0, 1)
