"""Requests in vLLM's words, and what its errors mean."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from python_backend.engine.report import EngineBroken
from python_backend.engine.request import GenerationRequest, Guide, GuideKind, Retention, RetentionRange
from python_backend.engine.request import SamplingParams as Sampling
from python_backend.engine.runtimes.declared import VLLM
from python_backend.engine.runtimes.vllm.adapters import VllmAdapters, adapter_arguments
from python_backend.engine.runtimes.vllm.host import read_output
from python_backend.engine.runtimes.vllm.translator import VllmTranslator
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tiers import Tier


class EngineDeadError(Exception):
    pass


class EngineGenerateError(Exception):
    pass


class VLLMValidationError(Exception):
    pass


API = {
    "SamplingParams": SimpleNamespace,
    "RequestOutputKind": SimpleNamespace(DELTA="delta"),
    "StructuredOutputsParams": dict,
    "tokens_input": lambda ids, cache_salt: {"prompt_token_ids": ids, "cache_salt": cache_salt},
    "EngineDeadError": EngineDeadError,
    "EngineGenerateError": EngineGenerateError,
    "VLLMValidationError": VLLMValidationError,
    "VLLMUnprocessableEntityError": VLLMValidationError,
    "VLLMNotFoundError": VLLMValidationError,
}
TRANSLATOR = VllmTranslator(API, VLLM.capabilities, True, (2, 9))


def arguments(index: int = 0, **more: Any) -> dict[str, Any]:
    request = GenerationRequest(**{"prompt_ids": [5, 6], "max_new_tokens": 8, **more})
    TRANSLATOR.refuse(request)
    return TRANSLATOR.arguments(Sequence(3, 0, request, 7, index=index))


def test_tenants_and_tiers_become_salts_and_priorities() -> None:
    given = arguments(cache_salt="ours", tier=Tier.BATCH)
    assert given["prompt"] == {"prompt_token_ids": [5, 6], "cache_salt": "ours"}
    assert (given["request_id"], given["priority"]) == ("3.0", 2)
    assert arguments()["prompt"]["cache_salt"] is None


def test_an_adapter_is_asked_for_by_its_place_and_again_where_its_files_have_changed(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "sql").mkdir(exist_ok=True)
        (tmp_path / "sql" / name).write_text("{}")
    adapters = VllmAdapters(tmp_path, SimpleNamespace)
    translator = VllmTranslator(API, VLLM.capabilities, True, (), adapters)
    request = GenerationRequest([5, 6], 8, adapter="sql")
    translator.refuse(request)
    first = translator.arguments(Sequence(3, 0, request, 7))["lora_request"]
    assert (first.lora_int_id, first.lora_path) == (1, str(tmp_path / "sql"))
    again = translator.arguments(Sequence(4, 0, request, 7))["lora_request"]
    assert again == first
    (tmp_path / "sql" / "adapter_config.json").write_text("{ }")
    assert translator.arguments(Sequence(5, 0, request, 7))["lora_request"].lora_int_id == 2
    assert "lora_request" not in arguments()
    with pytest.raises(InflightError, match="adapter nobody not found"):
        translator.refuse(replace(request, adapter="nobody"))


def test_an_adapter_is_refused_by_name_where_there_are_no_places_for_any() -> None:
    with pytest.raises(InflightError, match="inflight_max_adapters") as refused:
        arguments(adapter="sql")
    assert refused.value.kind is ErrorKind.UNSUPPORTED


def test_places_for_adapters_are_made_with_a_rank_that_vllm_knows() -> None:
    parameters = EngineParameters("inflight_fused_batching", "-", inflight_max_adapters=4)
    assert adapter_arguments(parameters) == {"enable_lora": True, "max_loras": 4, "max_lora_rank": 64}
    wider = replace(parameters, inflight_max_adapter_rank=65)
    assert adapter_arguments(wider)["max_lora_rank"] == 128
    assert adapter_arguments(replace(parameters, inflight_max_adapters=None)) == {}


def test_tokens_that_end_an_answer_are_vllms_to_look_for_where_they_are_single() -> None:
    params = arguments(end_id=4, stop_sequences=((7,), (8, 9)))["sampling_params"]
    assert (params.stop_token_ids, params.ignore_eos, params.min_tokens) == ([4, 7], True, 1)
    late = arguments(end_id=4, stop_sequences=((7,),), sampling=Sampling(min_tokens=3))["sampling_params"]
    assert (late.stop_token_ids, late.min_tokens) == ([4], 3)
    assert arguments()["sampling_params"].stop_token_ids is None


def test_a_guide_ends_with_any_token_of_the_model_that_ends_answers() -> None:
    params = arguments(guide=Guide(GuideKind.JSON_SCHEMA, "{}"), end_id=2)["sampling_params"]
    assert params.structured_outputs == {"json": "{}"}
    assert params.stop_token_ids == [2, 9]


def test_how_tokens_are_chosen_is_passed_on() -> None:
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=4, repetition_penalty=1.2)
    params = arguments(1, sampling=sampling, token_bias={3: 1.5}, bad_sequences=((1, 2),))["sampling_params"]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.7, 5, 0.9, 0.1)
    assert (params.seed, params.repetition_penalty) == (5, 1.2)
    assert (params.logit_bias, params._bad_words_token_ids) == ({3: 1.5}, [[1, 2]])
    assert arguments()["sampling_params"].temperature == 0.0


def test_log_probs_are_asked_for_where_they_are_wanted() -> None:
    params = arguments(top_log_probs=3, returns_prompt_log_probs=True)["sampling_params"]
    assert (params.logprobs, params.prompt_logprobs) == (3, 3)
    assert not hasattr(arguments()["sampling_params"], "logprobs")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"returns_context_logits": True}, "return_context_logits has True, which vLLM does not support"),
        ({"returns_generation_logits": True}, "return_generation_logits has True"),
        ({"sampling": Sampling(top_p=0.9, top_p_decay=0.5)}, "runtime_top_p_decay has 0.5"),
        (
            {"retention": Retention((RetentionRange(0, None, 80),))},
            "retention_token_range_starts has 1 ranges",
        ),
    ],
)
def test_what_vllm_does_not_do_is_refused_by_name(asked: dict[str, Any], name: str) -> None:
    with pytest.raises(InflightError, match=name) as failure:
        arguments(**asked)
    assert failure.value.kind is ErrorKind.UNSUPPORTED


def test_a_guide_needs_a_tokenizer() -> None:
    without = VllmTranslator(API, VLLM.capabilities, False)
    with pytest.raises(InflightError, match="guided decoding"):
        without.refuse(GenerationRequest([1], 1, guide=Guide(GuideKind.JSON)))


def test_an_error_ends_one_request_or_all_of_them() -> None:
    refused, failed = (
        TRANSLATOR.failure_of(VLLMValidationError("no")),
        TRANSLATOR.failure_of(TypeError("odd")),
    )
    assert refused is not None
    assert refused.kind is ErrorKind.INVALID_REQUEST
    assert failed is not None
    assert failed.kind is ErrorKind.ENGINE_FAILED
    for fatal in (EngineDeadError(), EngineBroken("error"), RuntimeError("what")):
        assert TRANSLATOR.failure_of(fatal) is None


def test_no_field_of_a_request_is_forgotten() -> None:
    mapped = {
        *("prompt_ids", "max_new_tokens", "end_id", "stop_sequences", "sampling", "bad_sequences"),
        *("token_bias", "guide", "num_return_sequences", "tier", "cache_salt", "retention"),
        *("returns_log_probs", "returns_context_logits", "returns_generation_logits", "top_log_probs"),
        *("returns_prompt_log_probs", "takes_any_ids", "adapter", "images", "part", "context"),
    }
    of_no_account = {"notes_steps", "shared_tokens", "tenant", "weight"}
    assert {field.name for field in fields(GenerationRequest)} == mapped | of_no_account


def test_a_piece_of_an_answer_is_read_with_what_it_says_of_the_prompt() -> None:
    def row(token_id: int) -> dict[int, Any]:
        return {token_id: SimpleNamespace(logprob=-1.0)}

    answer = SimpleNamespace(token_ids=[4], logprobs=[row(4)], finish_reason="stop", stop_reason=None)
    times = SimpleNamespace(scheduled_ts=1.0, first_token_ts=2.0, last_token_ts=3.0, num_preemptions=2)
    output = SimpleNamespace(
        outputs=[answer],
        finished=True,
        prompt_logprobs=[None, row(6)],
        prompt_token_ids=[5, 6],
        metrics=times,
        num_cached_tokens=1,
    )
    news = read_output(output)
    assert (news.token_ids, news.finish_reason, news.is_last, news.cached_tokens) == ([4], "stop", True, 1)
    assert news.prompt_log_probs == [[(6, -1.0), (6, -1.0)]]
    assert news.perf is not None
    assert (news.perf.first_token_ns, news.perf.preemptions) == (2_000_000_000, 2)
