"""The runtime around TensorRT-LLM, which a test plays by hand."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.report import EngineBroken, FinishReason, SequenceEvent
from python_backend.engine.request import (
    GenerationRequest,
    Guide,
    GuideKind,
    Retention,
    RetentionRange,
    SamplingParams,
)
from python_backend.engine.runtimes.declared import TENSORRT_LLM
from python_backend.engine.runtimes.hosted.runtime import HostedRuntime, HostFacts
from python_backend.engine.runtimes.trtllm.translator import LlmTranslator
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from tests.fakes.conversation import HandConversation, LlmApi, RequestError

FACTS = HostFacts(100, 64, 4, 32, 16, 16, guide_end_id=2)


class Run:
    def __init__(self, facts: HostFacts = FACTS) -> None:
        self.there = HandConversation()
        can_guide = facts.guide_end_id is not None
        translator = LlmTranslator(LlmApi, TENSORRT_LLM.capabilities, 100, can_guide)
        self.runtime = HostedRuntime(self.there, translator, facts)
        self.events: list[SequenceEvent] = []

    def add(self, key: int, **more: Any) -> None:
        given: dict[str, Any] = {"prompt_ids": [5, 6], "max_new_tokens": 8, **more}
        self.runtime.add(key, GenerationRequest(**given), time.monotonic_ns())

    def step(self) -> list[SequenceEvent]:
        told = self.runtime.step()
        self.events += told
        return told

    def sampling(self, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.there.asked[number].arguments["sampling_params"].arguments
        return found


def started(**more: Any) -> Run:
    run = Run()
    run.add(1, **more)
    run.step()
    return run


def test_tokens_become_events_and_the_last_has_a_finish_reason() -> None:
    run = started()
    run.there.say(0, 10)
    run.there.say(0, 11)
    (event,) = run.step()
    assert (event.token_ids, event.finish_reason) == ([10, 11], None)
    run.there.say(0, 12, ends="length")
    (last,) = run.step()
    assert last.finish_reason is FinishReason.LENGTH
    assert last.perf is not None
    assert last.perf.arrival_ns <= last.perf.first_scheduled_ns <= last.perf.first_token_ns
    assert not run.there.aborted


@pytest.mark.parametrize("gives_it", [True, False])
def test_the_token_that_ends_an_answer_is_not_part_of_it(gives_it: bool) -> None:
    run = started(end_id=7)
    run.there.say(0, 10, *([7] if gives_it else []), ends="stop")
    (event,) = run.step()
    assert (event.token_ids, event.finish_reason) == ([10], FinishReason.END_ID)


def test_a_stop_word_of_several_tokens_ends_the_answer_and_is_part_of_it() -> None:
    run = started(stop_sequences=((10, 11), (12,)))
    assert run.sampling()["stop_token_ids"] == [12]
    run.there.say(0, 9, 10)
    run.there.say(0, 11, 30, 31)  # what was computed behind it
    (event,) = run.step()
    assert (event.token_ids, event.finish_reason) == ([9, 10, 11], FinishReason.STOP_WORDS)
    assert run.there.aborted == run.there.asked


def test_an_answer_at_its_length_limit_is_not_waited_for() -> None:
    run = started(max_new_tokens=2)
    run.there.say(0, 10, 11, 12)
    (event,) = run.step()
    assert (event.token_ids, event.finish_reason) == ([10, 11], FinishReason.LENGTH)


def test_a_cancelled_request_ends_once_whatever_comes_later() -> None:
    run = started()
    run.there.say(0, 10)
    run.step()
    run.runtime.cancel(1)
    run.runtime.cancel(1)
    run.there.say(0, 11)
    run.there.say(0, ends="cancelled")
    run.step()
    ends = [event for event in run.events if event.is_last]
    assert [event.finish_reason for event in ends] == [FinishReason.CANCELLED]
    run.runtime.cancel(77)  # nobody knows it


def test_a_slot_is_free_when_the_abort_is_confirmed() -> None:
    run = Run(HostFacts(100, 64, 1, 32, 16, 16))
    run.add(1)
    run.add(2)
    run.step()
    run.runtime.cancel(1)
    run.step()
    assert len(run.there.asked) == 1
    run.there.say(0, ends="cancelled")
    run.step()
    assert len(run.there.asked) == 2


def test_queued_requests_are_served_by_tier_and_then_by_arrival() -> None:
    run = Run(HostFacts(100, 64, 1, 32, 16, 16))
    for key, tier in enumerate((Tier.STANDARD, Tier.BATCH, Tier.STANDARD, Tier.INTERACTIVE)):
        run.add(key, tier=tier, prompt_ids=[key + 20])
    assert run.runtime.gauges().waiting == 4
    for number in range(4):
        run.step()
        run.there.say(number, 10, ends="length")
        run.step()
    order = [asked.arguments["inputs"][0] - 20 for asked in run.there.asked]
    assert order == [3, 0, 2, 1]


def test_fewer_slots_hold_from_the_next_request_and_more_than_at_the_start_are_refused() -> None:
    run = Run()
    run.runtime.configure(None, 1, None)
    run.add(1)
    run.add(2)
    run.step()
    assert len(run.there.asked) == 1
    assert run.runtime.gauges().max_batch_size == 1
    with pytest.raises(InflightError, match="max_batch_size is 5; allowed: 1 to 4"):
        run.runtime.configure(None, 5, None)


def test_several_sequences_are_requested_separately_with_their_own_seeds() -> None:
    run = started(num_return_sequences=2, sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=5))
    assert [run.sampling(number)["seed"] for number in (0, 1)] == [5, 6]
    run.there.say(1, 10, ends="length")
    run.there.say(0, 11, ends="stop")
    assert sorted((event.sequence_index, event.token_ids[0]) for event in run.step()) == [(0, 11), (1, 10)]


def test_a_least_share_is_passed_on() -> None:
    assert started(sampling=SamplingParams(top_p=0.9, min_p=0.1)).sampling(0)["min_p"] == 0.1


def test_a_requests_own_error_ends_that_request_alone() -> None:
    run = Run()
    for key in (1, 2, 3):
        run.add(key)
    run.step()
    run.there.fail(0, RequestError("too much"))
    run.there.fail(1, ValueError("top_k is odd"))
    run.there.say(2, 10, ends="length")
    first, second, third = run.step()
    assert InflightError.from_text(first.error or "").kind is ErrorKind.ENGINE_FAILED
    assert InflightError.from_text(second.error or "").kind is ErrorKind.INVALID_REQUEST
    assert third.finish_reason is FinishReason.LENGTH


def test_any_other_error_breaks_the_engine_and_every_request_is_told() -> None:
    run = Run()
    run.add(1)
    run.add(2)
    run.step()
    run.there.say(1, 10, ends="length")
    run.there.fail(0, RuntimeError("CUDA error"))
    with pytest.raises(EngineBroken, match="CUDA error"):
        run.step()
    ends = run.runtime.abort("engine_failed: broken")
    assert {event.key: event.finish_reason for event in ends} == {
        1: FinishReason.ERROR,
        2: FinishReason.LENGTH,
    }


def test_a_gpu_fault_breaks_the_engine_though_it_is_reported_as_a_requests_error() -> None:
    run = started()
    run.there.fail(0, RequestError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(EngineBroken, match="illegal memory access"):
        run.step()


def test_silence_breaks_the_engine_when_it_cannot_go_on() -> None:
    run = started()
    run.there.failure = "it died"
    with pytest.raises(EngineBroken, match="it died"):
        run.step()
    assert [event.finish_reason for event in run.runtime.abort("broken")] == [FinishReason.ERROR]


def test_a_request_that_cannot_be_translated_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**arguments: Any) -> None:
        raise OverflowError("int too big to convert")

    run = started()
    monkeypatch.setattr(LlmApi, "SamplingParams", refuse)
    run.add(2)
    (event,) = run.step()
    assert (event.key, "int too big" in (event.error or "")) == (2, True)
    assert run.runtime.gauges().active == 1


def test_an_unreadable_result_ends_its_own_sequence_alone() -> None:
    run = Run()
    run.add(1, top_log_probs=2)
    run.add(2)
    run.step()
    run.there.say(0, 10, log_probs=[None])
    run.there.say(1, 11, ends="length")
    broken, fine = run.step()
    assert InflightError.from_text(broken.error or "").kind is ErrorKind.ENGINE_FAILED
    assert fine.finish_reason is FinishReason.LENGTH
    assert run.there.aborted == run.there.asked[:1]


def test_an_end_without_a_finish_reason_is_an_error() -> None:
    run = started()
    run.there.say(0, 10, ends="timeout")
    (event,) = run.step()
    assert "timeout" in (event.error or "")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"bad_sequences": ((3, 4),)}, "bad_words_list has a word of 2 tokens"),
        (
            {"sampling": SamplingParams(top_p=0.9, top_p_decay=0.5)},
            "runtime_top_p_decay has 0.5, which TensorRT-LLM does not support",
        ),
        ({"prompt_ids": []}, "the prompt has no tokens"),
        ({"prompt_ids": [100]}, "allowed: 0 to 99"),
    ],
)
def test_an_unsupported_request_is_refused_by_name(asked: dict[str, Any], name: str) -> None:
    run = Run()
    with pytest.raises(InflightError, match=name):
        run.add(1, **asked)
    assert not run.runtime.has_work


def test_a_guide_needs_a_tokenizer_and_ends_with_the_models_own_token() -> None:
    run = started(guide=Guide(GuideKind.REGEX, "a+"))
    assert run.sampling()["guided_decoding"].arguments == {"regex": "a+"}
    assert (run.sampling()["end_id"], run.sampling()["ignore_eos"]) == (2, False)
    without = Run(HostFacts(100, 64, 4, 32, 16, 16))
    with pytest.raises(InflightError, match="guided decoding"):
        without.add(1, guide=Guide(GuideKind.JSON))


def test_every_other_field_of_a_request_is_passed_on() -> None:
    run = started(
        cache_salt="ours",
        token_bias={3: 1.5},
        bad_sequences=((4,),),
        returns_log_probs=True,
        top_log_probs=3,
        retention=Retention((RetentionRange(0, None, 80, 1000),), 50),
        sampling=SamplingParams(repetition_penalty=1.1, min_tokens=3),
    )
    arguments, sampling = run.there.asked[0].arguments, run.sampling()
    assert arguments["cache_salt"] == "ours"
    assert arguments["streaming"] is True
    (kept,) = arguments["kv_cache_retention_config"].arguments["token_range_retention_configs"]
    assert kept.parts[:3] == (0, None, 80)
    assert sampling["embedding_bias"].shape == (100,)
    assert sampling["embedding_bias"][3:6].tolist() == [1.5, float("-inf"), 0.0]
    wanted = {"logprobs": 3, "repetition_penalty": 1.1, "top_k": 1}
    assert wanted.items() <= sampling.items()
    assert sampling["ignore_eos"] is True
    assert "min_tokens" not in sampling  # there is no token whose coming it could put off


def test_a_stop_word_that_comes_too_early_does_not_end_the_answer() -> None:
    run = started(sampling=SamplingParams(min_tokens=3), end_id=7, stop_sequences=((12,),))
    assert (run.sampling()["min_tokens"], run.sampling()["stop_token_ids"]) == (3, None)
    run.there.say(0, 12, 11, 10, 12)
    (event,) = run.step()
    assert (event.token_ids, event.finish_reason) == ([12, 11, 10, 12], FinishReason.STOP_WORDS)


def test_no_field_of_a_request_is_forgotten() -> None:
    """A new one belongs into asking.py, into its refusals, or among those that are of no account there."""
    mapped = {
        *("prompt_ids", "max_new_tokens", "end_id", "stop_sequences", "sampling", "bad_sequences"),
        *("token_bias", "guide", "num_return_sequences", "tier", "cache_salt", "retention"),
        *("returns_log_probs", "returns_context_logits", "returns_generation_logits", "top_log_probs"),
        *("returns_prompt_log_probs", "takes_any_ids", "adapter", "images"),
    }
    # It tells of no sequence in which iterations it was, shares no part of a prompt between tenants, pauses
    # nobody for another, and compiles guides itself.
    of_no_account = {"notes_steps", "shared_tokens", "tenant", "weight", "part", "context"}
    assert {field.name for field in fields(GenerationRequest)} == mapped | of_no_account


def test_missing_logits_are_an_error() -> None:
    run = started(returns_context_logits=True)
    assert run.there.asked[0].arguments["streaming"] is False
    run.there.say(0, 10, ends="length")
    (event,) = run.step()
    assert "logits for 0 of the 2 tokens of the prompt" in (event.error or "")


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "token", "end", "fail", "cancel", "step"]), st.integers(0, 5)),
        max_size=60,
    )
)
def test_every_sequence_ends_exactly_once(happenings: list[tuple[str, int]]) -> None:
    run, keys, over = Run(HostFacts(100, 64, 2, 32, 16, 16)), 0, set[int]()
    for what, which in happenings:
        alive = [n for n in range(len(run.there.asked)) if n not in over]
        if what == "add":
            keys += 1
            run.add(keys, num_return_sequences=1 + which % 2, stop_sequences=((11, 12),))
        elif what == "cancel":
            run.runtime.cancel(which)
        elif what == "step":
            run.step()
        elif alive:
            number = alive[which % len(alive)]
            if what == "token":
                run.there.say(number, 10 + which)
                continue
            over.add(number)
            if what == "fail":
                run.there.fail(number, RequestError("no"))
            else:
                run.there.say(number, ends="stop")
    for key in range(keys + 1):
        run.runtime.cancel(key)
    run.step()
    ends = [(event.key, event.sequence_index) for event in run.events if event.is_last]
    assert len(ends) == len(set(ends))
    assert {key for key, _ in ends} == set(range(1, keys + 1))
    assert run.runtime.gauges().active == 0
