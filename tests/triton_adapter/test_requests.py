from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from python_backend.triton_adapter import requests
from python_backend.triton_adapter.requests import GenerateCall, StopCall, decode_call, decode_word_list
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import TENSORRT_LLM

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


def inputs(**values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs as the stub hands them over: scalars [1], everything else with a batch dimension."""
    given = {"input_ids": [[5, 6, 7]], "input_lengths": [3], "request_output_len": [4], **values}
    return {
        name: np.asarray(value, dtype=DTYPES[TENSORRT_LLM.input(name).dtype])
        for name, value in given.items()
        if value is not None
    }


def generate(**values: Any) -> GenerateCall:
    call = decode_call("r1", inputs(**values), exclude_input_by_default=False)
    assert isinstance(call, GenerateCall)
    return call


def test_the_least_a_request_can_say_is_greedy() -> None:
    call = generate()
    assert call.generation.prompt_ids == [5, 6, 7]
    assert call.generation.max_new_tokens == 4
    assert call.generation.end_id == -1
    assert (call.generation.sampling.top_k, call.generation.sampling.top_p) == (0, 0.0)
    assert not call.streaming
    assert call.echo_prompt


def test_padding_is_cut_at_input_lengths() -> None:
    assert generate(input_ids=[[5, 6, 0, 0]], input_lengths=[2]).generation.prompt_ids == [5, 6]


def test_streams_never_echo_the_prompt() -> None:
    assert not generate(streaming=[True]).echo_prompt
    assert not generate(exclude_input_in_output=[True]).echo_prompt


def test_only_a_request_from_preprocessing_feeds_postprocessing() -> None:
    assert not generate().feeds_postprocessing
    assert generate(decoder_input_ids=[[2]], decoder_input_lengths=[1]).feeds_postprocessing


def test_stop_needs_an_id_and_nothing_else() -> None:
    assert decode_call("r1", inputs(stop=[True]), False) == StopCall("r1")
    with pytest.raises(InflightError, match="request ID is not provided"):
        decode_call("", inputs(stop=[True]), False)


def test_stop_words_are_read_in_the_contracts_encoding() -> None:
    table = np.asarray([[[1, 2, 3, 0], [1, 3, -1, -1]]], dtype=np.int32)
    assert decode_word_list({"stop_words_list": table}, "stop_words_list") == ((1,), (2, 3))


@pytest.mark.parametrize("ends", [[3, 1, -1], [9, -1, -1], [0, -1, -1]])
def test_broken_word_lists_are_refused(ends: list[int]) -> None:
    table = np.asarray([[[1, 2, 3], ends]], dtype=np.int32)
    with pytest.raises(InflightError, match="stop_words_list"):
        decode_word_list({"stop_words_list": table}, "stop_words_list")


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
        ("repetition_penalty", [0.0]),
        ("min_tokens", [-1]),
    ],
)
def test_bad_values_are_refused_naming_the_input(name: str, value: list[Any]) -> None:
    with pytest.raises(InflightError, match=name) as failure:
        generate(**{name: value})
    assert failure.value.kind is ErrorKind.INVALID_REQUEST


# One value of each input that is not honoured, asking for something.
ASKING = {
    "encoder_input_features": [[[0.5]]],
    "encoder_output_lengths": [3],
    "num_return_sequences": [2],
    "draft_input_ids": [[1, 2]],
    "draft_logits": [[[0.5]]],
    "draft_acceptance_threshold": [0.5],
    "decoder_input_ids": [[1, 2]],
    "bad_words_list": [[[1], [1]]],
    "embedding_bias": [[0.5, 0.5]],
    "beam_width": [2],
    "runtime_top_p_min": [0.1],
    "runtime_top_p_decay": [0.9],
    "runtime_top_p_reset_ids": [3],
    "return_log_probs": [True],
    "return_context_logits": [True],
    "return_generation_logits": [True],
    "return_perf_metrics": [True],
    "prompt_embedding_table": [[[0.5]]],
    "prompt_table_extra_ids": [[1]],
    "cross_attention_mask": [[[True]]],
    "mrope_rotary_cos_sin": [[0.5]],
    "mrope_position_deltas": [[1]],
    "lora_task_id": [1],
    "lora_weights": [[[0.5]]],
    "lora_config": [[[1, 2, 3]]],
    "context_phase_params": [[1]],
    "skip_cross_attn_blocks": [[True]],
    "retention_token_range_starts": [[0]],
    "retention_token_range_ends": [[5]],
    "retention_token_range_priorities": [[1]],
    "retention_token_range_durations_ms": [[10]],
    "retention_decode_priority": [[1]],
    "retention_decode_duration_ms": [[1]],
    "guided_decoding_guide_type": [[b"json"]],
    "guided_decoding_guide": [[b"{}"]],
    "lookahead_window_size": [[3]],
    "lookahead_ngram_size": [[3]],
    "lookahead_verification_set_size": [[3]],
}
WITHOUT_EFFECT = {"len_penalty", "early_stopping", "beam_search_diversity_rate", "prompt_vocab_size"}


def test_no_refusal_is_left_untried() -> None:
    assert ASKING.keys() == requests._NOT_HONOURED.keys() - WITHOUT_EFFECT | {"decoder_input_ids"}


@pytest.mark.parametrize("name", ASKING)
def test_an_input_that_is_not_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(InflightError, match=name) as failure:
        generate(**{name: ASKING[name]})
    assert failure.value.kind is ErrorKind.UNSUPPORTED


def test_neutral_values_of_the_same_inputs_pass() -> None:
    generate(
        num_return_sequences=[1],
        bad_words_list=np.zeros((1, 2, 0)),
        embedding_bias=np.zeros((1, 0)),
        beam_width=[1],
        len_penalty=[1.0],
        return_log_probs=[False],
        guided_decoding_guide_type=[[b""]],
    )


def test_several_rows_in_one_request_are_refused() -> None:
    with pytest.raises(InflightError, match="input_ids has 2 rows"):
        generate(input_ids=[[1, 2], [3, 4]], input_lengths=[2, 2])


def test_every_input_of_the_contract_is_either_honoured_or_refusable() -> None:
    """No name is forgotten: an input the decoder does not know would be dropped in silence."""
    honoured = {
        "input_ids",
        "input_lengths",
        "request_output_len",
        "decoder_input_ids",
        "decoder_input_lengths",
        "end_id",
        "pad_id",
        "stop_words_list",
        "temperature",
        "runtime_top_k",
        "runtime_top_p",
        "repetition_penalty",
        "min_tokens",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "exclude_input_in_output",
        "stop",
        "streaming",
    }
    assert honoured | requests._NOT_HONOURED.keys() == {tensor.name for tensor in TENSORRT_LLM.inputs}
