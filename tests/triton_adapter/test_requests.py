from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from python_backend.engine.request import (
    GenerationRequest,
    Guide,
    GuideKind,
    Retention,
    RetentionRange,
    SamplingParams,
)
from python_backend.triton_adapter import requests
from python_backend.triton_adapter.requests import GenerateCall, ModelRules, StopCall, decode_call
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.pools import Part
from python_backend.wire.tensors import TENSORRT_LLM
from python_backend.wire.tiers import Tier

DTYPES = {
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "UINT8": np.uint8,
    "FP32": np.float32,
    "FP16": np.float16,
    "BOOL": np.bool_,
    "BYTES": np.object_,
}
RULES = ModelRules(decoupled=True, exclude_input=False, isolate_tenants=False, max_sequences=8)


def inputs(**values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs as the stub hands them over: scalars [rows], everything else [rows, ...]."""
    given = {"input_ids": [[5, 6, 7]], "input_lengths": [3], "request_output_len": [4], **values}
    return {
        name: np.asarray(value, dtype=DTYPES[TENSORRT_LLM.input(name).dtype])
        for name, value in given.items()
        if value is not None
    }


def decode(
    rules: ModelRules = RULES, parameters: dict[str, Any] | None = None, **values: Any
) -> GenerateCall:
    call = decode_call("r1", inputs(**values), parameters or {}, rules)
    assert isinstance(call, GenerateCall)
    return call


def generation(**values: Any) -> GenerationRequest:
    (row,) = decode(**values).rows
    return row.generation


def test_a_minimal_request_is_greedy() -> None:
    (row,) = decode().rows
    assert row.generation == GenerationRequest(array("i", [5, 6, 7]), 4, end_id=-1, takes_any_ids=True)
    assert row.generation.sampling.is_greedy
    assert not row.streaming
    assert row.echo_prompt


def test_a_least_share_and_stop_tokens_are_part_of_the_request() -> None:
    (row,) = decode(parameters={"inflight_min_p": "0.1", "inflight_stop_token_ids": "[3]"}).rows
    assert row.generation.sampling.min_p == 0.1
    assert row.generation.single_ends == [-1, 3]


def test_padding_is_cut_at_input_lengths() -> None:
    assert generation(input_ids=[[5, 6, 0, 0]], input_lengths=[2]).prompt_ids == array("i", [5, 6])


def test_streams_never_echo_the_prompt() -> None:
    assert not decode(streaming=[True]).rows[0].echo_prompt
    assert not decode(exclude_input_in_output=[True]).rows[0].echo_prompt
    assert not decode(replace(RULES, exclude_input=True)).rows[0].echo_prompt


def test_only_a_request_from_preprocessing_feeds_postprocessing() -> None:
    assert not decode().feeds_postprocessing
    assert decode(decoder_input_ids=[[2]], decoder_input_lengths=[1]).feeds_postprocessing


def test_stop_needs_an_id_and_nothing_else() -> None:
    assert decode_call("r1", inputs(stop=[True]), {}, RULES) == StopCall("r1")
    with pytest.raises(InflightError, match="request ID is not provided"):
        decode_call("", inputs(stop=[True]), {}, RULES)


def test_word_lists_are_read_in_the_contracts_encoding() -> None:
    table = [[[1, 2, 3, 0], [1, 3, -1, -1]]]
    assert generation(stop_words_list=table).stop_sequences == ((1,), (2, 3))
    assert generation(bad_words_list=table).bad_sequences == ((1,), (2, 3))
    assert generation(bad_words_list=np.zeros((1, 2, 0))).bad_sequences == ()


@pytest.mark.parametrize("name", ["stop_words_list", "bad_words_list"])
@pytest.mark.parametrize("ends", [[3, 1, -1], [9, -1, -1], [0, -1, -1]])
def test_broken_word_lists_are_refused(name: str, ends: list[int]) -> None:
    with pytest.raises(InflightError, match=name):
        generation(**{name: [[[1, 2, 3], ends]]})
    with pytest.raises(InflightError, match="shape"):
        generation(**{name: [[1, 2, 3]]})


def test_sampling_inputs_arrive_under_their_names() -> None:
    sampling = generation(
        temperature=[0.5],
        runtime_top_k=[3],
        runtime_top_p=[0.75],
        runtime_top_p_min=[0.25],
        runtime_top_p_decay=[0.5],
        runtime_top_p_reset_ids=[9],
        seed=[2**63],
        repetition_penalty=[1.5],
        presence_penalty=[0.25],
        frequency_penalty=[-0.5],
        min_tokens=[2],
    ).sampling
    assert sampling == SamplingParams(0.5, 3, 0.75, 0.25, 0.5, 9, 2**63, 1.5, 0.25, -0.5, 2)


def test_neutral_values_of_the_top_p_inputs_are_the_defaults() -> None:
    given = generation(runtime_top_p_min=[0.0], runtime_top_p_decay=[1.0], runtime_top_p_reset_ids=[-1])
    assert given.sampling == SamplingParams()


def test_an_embedding_bias_becomes_the_bias_of_its_tokens() -> None:
    assert generation(embedding_bias=[[0, 0.5, 0, -2]]).token_bias == {1: 0.5, 3: -2.0}
    assert generation(embedding_bias=np.zeros((1, 0))).token_bias == {}


def test_the_outputs_of_an_answer_are_requested_by_flags() -> None:
    asked = decode(
        return_log_probs=[True],
        return_context_logits=[True],
        return_generation_logits=[True],
        return_perf_metrics=[True],
        num_return_sequences=[3],
    ).rows[0]
    assert asked.generation.returns_log_probs
    assert asked.generation.returns_context_logits
    assert asked.generation.returns_generation_logits
    assert asked.generation.num_return_sequences == 3
    assert asked.wants_perf


@pytest.mark.parametrize(
    ("kind", "text", "guide"),
    [
        (b"json", b"", Guide(GuideKind.JSON)),
        (b"json", b"{}", Guide(GuideKind.JSON)),
        (b"json_schema", b'{"type": "object"}', Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}')),
        (b"regex", "[äö]+".encode(), Guide(GuideKind.REGEX, "[äö]+")),
        (b"ebnf_grammar", b'root ::= "a"', Guide(GuideKind.EBNF_GRAMMAR, 'root ::= "a"')),
        (b"", b"", None),
    ],
)
def test_a_guide_is_read(kind: bytes, text: bytes, guide: Guide | None) -> None:
    asked = generation(guided_decoding_guide_type=[[kind]], guided_decoding_guide=[[text]])
    assert asked.guide == guide


def test_a_guide_of_unknown_kind_is_refused_with_the_known_ones() -> None:
    for kind in (b"xml", b""):
        with pytest.raises(InflightError, match="allowed: json, json_schema, regex, ebnf_grammar"):
            generation(guided_decoding_guide_type=[[kind]], guided_decoding_guide=[[b"x"]])
    with pytest.raises(InflightError, match="json_schema needs its text"):
        generation(guided_decoding_guide_type=[[b"json_schema"]])
    with pytest.raises(InflightError, match="not valid UTF-8"):
        generation(guided_decoding_guide_type=[[b"regex"]], guided_decoding_guide=[[b"\xff"]])


def test_retention_is_read_with_its_open_ends() -> None:
    asked = generation(
        retention_token_range_starts=[[0, 100]],
        retention_token_range_ends=[[100, -1]],
        retention_token_range_priorities=[[90, 20]],
        retention_token_range_durations_ms=[[-1, 500]],
        retention_decode_priority=[[0]],
        retention_decode_duration_ms=[[250]],
    ).retention
    ranges = (RetentionRange(0, 100, 90, None), RetentionRange(100, None, 20, 500))
    assert asked == Retention(ranges, decode_priority=0, decode_duration_ms=250)
    without_durations = generation(
        retention_token_range_starts=[[0]],
        retention_token_range_ends=[[-1]],
        retention_token_range_priorities=[[50]],
    ).retention
    assert without_durations == Retention((RetentionRange(0, None, 50, None),))


@pytest.mark.parametrize(
    "change",
    [
        {"retention_token_range_ends": [[100]]},
        {"retention_token_range_priorities": None},
        {"retention_token_range_durations_ms": [[1]]},
        {"retention_token_range_starts": None},
        {"retention_token_range_priorities": [[101, 0]]},
        {"retention_token_range_starts": [[-5, 100]]},
        {"retention_token_range_ends": [[100, 100]]},
        {"retention_token_range_durations_ms": [[-7, 1]]},
        {"retention_decode_priority": [[-1]]},
        {"retention_decode_duration_ms": [[-2]]},
    ],
)
def test_inconsistent_retention_is_refused(change: dict[str, Any]) -> None:
    ranges = {
        "retention_token_range_starts": [[0, 100]],
        "retention_token_range_ends": [[100, 200]],
        "retention_token_range_priorities": [[50, 50]],
    }
    with pytest.raises(InflightError, match="retention"):
        generation(**{**ranges, **change})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_output_len", [0]),
        ("request_output_len", [-3]),
        ("input_lengths", [0]),
        ("input_lengths", [9]),
        ("temperature", [-1.0]),
        ("temperature", [float("nan")]),
        ("runtime_top_p", [1.5]),
        ("runtime_top_k", [-1]),
        ("runtime_top_p_min", [-0.1]),
        ("runtime_top_p_min", [1.1]),
        ("runtime_top_p_decay", [0.0]),
        ("runtime_top_p_decay", [2.0]),
        ("runtime_top_p_reset_ids", [-2]),
        ("repetition_penalty", [0.0]),
        ("presence_penalty", [float("inf")]),
        ("min_tokens", [-1]),
        ("num_return_sequences", [0]),
        ("num_return_sequences", [9]),
        ("embedding_bias", [[float("nan")]]),
        ("embedding_bias", [[float("inf")]]),
        ("seed", [1, 2]),
        ("retention_decode_priority", [[1, 2]]),
    ],
)
def test_bad_values_are_refused_naming_the_input(name: str, value: list[Any]) -> None:
    with pytest.raises(InflightError, match=name) as failure:
        generation(**{name: value})
    assert failure.value.kind is ErrorKind.INVALID_REQUEST


def test_each_row_of_a_batch_has_its_own_values() -> None:
    first, second = decode(
        input_ids=[[5, 6, 7], [8, 9, 0]],
        input_lengths=[3, 2],
        request_output_len=[4, 5],
        temperature=[0.5, 1.0],
        streaming=[True, False],
        num_return_sequences=[1, 2],
        stop_words_list=[[[1, 2], [2, -1]], [[3, 4], [1, 2]]],
        embedding_bias=[[0, 1], [2, 0]],
        guided_decoding_guide_type=[[b""], [b"json"]],
        decoder_input_ids=[[0], [0]],
    ).rows
    assert [list(row.generation.prompt_ids) for row in (first, second)] == [[5, 6, 7], [8, 9]]
    assert [row.generation.max_new_tokens for row in (first, second)] == [4, 5]
    assert [row.generation.sampling.temperature for row in (first, second)] == [0.5, 1.0]
    assert [row.streaming for row in (first, second)] == [True, False]
    assert [row.generation.num_return_sequences for row in (first, second)] == [1, 2]
    assert first.generation.stop_sequences == ((1, 2),)
    assert second.generation.stop_sequences == ((3,), (4,))
    assert [row.generation.token_bias for row in (first, second)] == [{1: 1.0}, {0: 2.0}]
    assert [row.generation.guide for row in (first, second)] == [None, Guide(GuideKind.JSON)]


def test_an_input_with_another_number_of_rows_is_refused() -> None:
    with pytest.raises(InflightError, match="seed"):
        decode(input_ids=[[1], [2]], input_lengths=[1, 1], request_output_len=[1, 1], seed=[7])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"streaming": [True]}, "only supported if model is deployed using decoupled mode"),
        (
            {"input_ids": [[1], [2]], "input_lengths": [1, 1], "request_output_len": [1, 1]},
            "requires the tensorrt_llm backend to be using decoupled transaction policy",
        ),
        ({"num_return_sequences": [2]}, "num_return_sequences"),
    ],
)
def test_a_model_that_is_not_decoupled_accepts_what_one_response_can_answer(
    values: dict[str, Any], sentence: str
) -> None:
    rules = replace(RULES, decoupled=False)
    with pytest.raises(InflightError, match=sentence):
        decode(rules, **values)
    assert len(decode(rules).rows) == 1


def test_tier_and_salt_come_as_request_parameters() -> None:
    parameters = {"tenant": "acme", "inflight_tier": "interactive", "inflight_cache_salt": "s"}
    (row,) = decode(parameters=parameters).rows
    assert (row.generation.tier, row.generation.cache_salt) == (Tier.INTERACTIVE, "s")
    (plain,) = decode().rows
    assert (plain.generation.tier, plain.generation.cache_salt) == (Tier.STANDARD, "")


def test_a_request_with_a_trace_has_the_steps_of_its_first_row_noted() -> None:
    parameters = {"inflight_trace": True, "traceparent": "00-1-2-01", "tracestate": "a=b"}
    (row,) = decode(parameters=parameters).rows
    assert row.generation.notes_steps
    (plain,) = decode().rows
    assert not plain.generation.notes_steps


def of_part(part: Part, **values: Any) -> GenerationRequest:
    pools = {Part.WHOLE: "both", Part.CONTEXT: "prefill", Part.GENERATION: "decode"}
    (row,) = decode(replace(RULES, pool=pools[part]), {"request_type": part.value}, **values).rows
    return row.generation


def test_a_prompt_computed_for_another_engine_has_one_token_that_nobody_sees() -> None:
    asked = of_part(Part.CONTEXT, request_output_len=[40], end_id=[2], temperature=[0.5], seed=[7])
    assert asked == GenerationRequest(array("i", [5, 6, 7]), 1, takes_any_ids=True, part=Part.CONTEXT)


def test_an_answer_to_a_prompt_computed_elsewhere_carries_where_it_can_be_had() -> None:
    asked = of_part(Part.GENERATION, request_output_len=[40], context_phase_params=[list(b"{}")])
    assert (asked.part, asked.max_new_tokens, asked.context) == (Part.GENERATION, 40, b"{}")


@pytest.mark.parametrize("part", Part)
def test_what_an_engine_said_of_a_prompt_is_for_the_answer_to_it_and_needed_there(part: Part) -> None:
    given = None if part is Part.GENERATION else [[1]]
    with pytest.raises(InflightError, match=f"where request_type is generation_only; it is {part.value}"):
        of_part(part, context_phase_params=given)


@pytest.mark.parametrize("asked", [{"num_return_sequences": [2]}, {"return_context_logits": [True]}])
def test_nothing_is_told_of_a_prompt_that_is_computed_for_another_engine(asked: dict[str, Any]) -> None:
    (name,) = asked
    with pytest.raises(InflightError, match=f"{name} is only for the engine that decodes"):
        of_part(Part.CONTEXT, **asked)


# One value of each input that is not honoured, asking for something.
ASKING: dict[str, Any] = {
    "encoder_input_features": [[[0.5]]],
    "encoder_output_lengths": [3],
    "draft_input_ids": [[1, 2]],
    "draft_logits": [[[0.5]]],
    "draft_acceptance_threshold": [0.5],
    "decoder_input_ids": [[1, 2]],
    "beam_width": [2],
    "prompt_embedding_table": [[[0.5]]],
    "prompt_table_extra_ids": [[1]],
    "cross_attention_mask": [[[True]]],
    "mrope_rotary_cos_sin": [[0.5]],
    "mrope_position_deltas": [[1]],
    "lora_task_id": [1],
    "lora_weights": [[[0.5]]],
    "lora_config": [[[1, 2, 3]]],
    "skip_cross_attn_blocks": [[True]],
    "lookahead_window_size": [[3]],
    "lookahead_ngram_size": [[3]],
    "lookahead_verification_set_size": [[3]],
}
WITHOUT_EFFECT = {"len_penalty", "early_stopping", "beam_search_diversity_rate", "prompt_vocab_size"}


def test_every_refusal_has_a_test_case() -> None:
    assert ASKING.keys() == requests._NOT_HONOURED.keys() - WITHOUT_EFFECT | {"decoder_input_ids"}


@pytest.mark.parametrize("name", ASKING)
def test_an_input_that_is_not_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(InflightError, match=name) as failure:
        decode(**{name: ASKING[name]})
    assert failure.value.kind is ErrorKind.UNSUPPORTED


def test_neutral_values_of_the_same_inputs_pass() -> None:
    decode(
        beam_width=[1],
        len_penalty=[1.0],
        early_stopping=[True],
        draft_acceptance_threshold=[0.0],
        encoder_output_lengths=[0],
        skip_cross_attn_blocks=[[False]],
        lora_weights=np.zeros((1, 0, 0)),
        prompt_embedding_table=np.zeros((1, 0, 0)),
    )


def test_every_input_of_the_contract_is_either_honoured_or_refusable() -> None:
    """No name is forgotten: an input the decoder does not know would be dropped in silence."""
    read: set[str] = set()

    class Watched(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

        def __contains__(self, name: object) -> bool:
            read.add(str(name))
            return super().__contains__(name)

    decode_call("r1", Watched(inputs()), {}, RULES)
    # `pad_id` and the decoder's length say nothing to a decoder that never pads.
    assert read | {"pad_id", "decoder_input_lengths"} == {tensor.name for tensor in TENSORRT_LLM.inputs}


def test_files_of_images_are_part_of_the_request_and_empty_ones_are_not() -> None:
    assert generation(images=[[b"one", b"", b"two"]]).images == (b"one", b"two")
    assert generation().images == ()
