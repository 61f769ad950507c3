"""Decodes one Triton request to `tensorrt_llm` into plain values, by the table of what is honoured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from python_backend.engine.sequence import GenerationRequest, SamplingParams
from python_backend.triton_adapter.pb import Array
from python_backend.wire.errors import ErrorKind, InflightError


@dataclass(frozen=True, slots=True)
class StopCall:
    """Cancel the running request of the same id."""

    request_id: str


@dataclass(frozen=True, slots=True)
class GenerateCall:
    request_id: str
    generation: GenerationRequest
    streaming: bool
    echo_prompt: bool
    wants_input_count: bool
    wants_output_count: bool
    # Only preprocessing sends decoder_input_ids for a decoder-only model: the answer goes to postprocessing.
    feeds_postprocessing: bool


def _is_false(values: Array) -> bool:
    return not values.any()


def _is_empty(values: Array) -> bool:
    return values.size == 0


def _is(allowed: Any) -> Callable[[Array], bool]:
    return lambda values: bool((values == allowed).all())


def _anything(values: Array) -> bool:
    return True


# Inputs of the contract that this engine does not honour, each with the values that ask for nothing.
# Those of beam search have no effect at the only beam width there is.
_NOT_HONOURED: dict[str, Callable[[Array], bool]] = {
    "encoder_input_features": _is_empty,
    "encoder_output_lengths": _is(0),
    "num_return_sequences": _is(1),
    "draft_input_ids": _is_empty,
    "draft_logits": _is_empty,
    "draft_acceptance_threshold": _is(0.0),
    "bad_words_list": _is_empty,
    "embedding_bias": _is_empty,
    "beam_width": _is(1),
    "runtime_top_p_min": _is(0.0),
    "runtime_top_p_decay": _is(1.0),
    "runtime_top_p_reset_ids": _is(-1),
    "len_penalty": _anything,
    "early_stopping": _anything,
    "beam_search_diversity_rate": _anything,
    "return_log_probs": _is_false,
    "return_context_logits": _is_false,
    "return_generation_logits": _is_false,
    "return_perf_metrics": _is_false,
    "prompt_embedding_table": _is_empty,
    "prompt_table_extra_ids": _is_empty,
    "prompt_vocab_size": _anything,
    "cross_attention_mask": _is_empty,
    "mrope_rotary_cos_sin": _is_empty,
    "mrope_position_deltas": _is_empty,
    "lora_task_id": _is_empty,
    "lora_weights": _is_empty,
    "lora_config": _is_empty,
    "context_phase_params": _is_empty,
    "skip_cross_attn_blocks": _is_false,
    "retention_token_range_starts": _is_empty,
    "retention_token_range_ends": _is_empty,
    "retention_token_range_priorities": _is_empty,
    "retention_token_range_durations_ms": _is_empty,
    "retention_decode_priority": _is_empty,
    "retention_decode_duration_ms": _is_empty,
    "guided_decoding_guide_type": _is(b""),
    "guided_decoding_guide": _is(b""),
    "lookahead_window_size": _is_empty,
    "lookahead_ngram_size": _is_empty,
    "lookahead_verification_set_size": _is_empty,
}


def decode_call(
    request_id: str, inputs: Mapping[str, Array], exclude_input_by_default: bool
) -> GenerateCall | StopCall:
    """One request as values; raises InflightError naming the input at fault."""
    _refuse_several_rows(inputs)
    scalar = _Scalars(inputs)
    if scalar.boolean("stop"):
        if not request_id:
            raise _invalid("stop", "Trying to stop a request but request ID is not provided")
        return StopCall(request_id)
    _refuse_what_is_not_honoured(inputs)
    streaming = scalar.boolean("streaming")
    exclude_input = scalar.boolean("exclude_input_in_output", exclude_input_by_default)
    return GenerateCall(
        request_id=request_id,
        generation=_generation(inputs, scalar),
        streaming=streaming,
        echo_prompt=not streaming and not exclude_input,
        wants_input_count=scalar.boolean("return_num_input_tokens"),
        wants_output_count=scalar.boolean("return_num_output_tokens"),
        feeds_postprocessing="decoder_input_ids" in inputs,
    )


def decode_word_list(inputs: Mapping[str, Array], name: str) -> tuple[tuple[int, ...], ...]:
    """The contract's word lists: row 0 the ids of all words, row 1 their cumulative ends, padded with -1."""
    if name not in inputs or inputs[name].size == 0:
        return ()
    rows = inputs[name].reshape(-1, inputs[name].shape[-1]).tolist()
    if len(rows) != 2:
        raise _invalid(name, f"{name} must have shape [2, n]")
    flat_ids, ends = rows
    words, start = [], 0
    for end in ends:
        if end < 0:
            break
        if not start < end <= len(flat_ids):
            raise _invalid(name, f"{name} has the end {end} after {start}; ends rise up to {len(flat_ids)}")
        words.append(tuple(flat_ids[start:end]))
        start = end
    return tuple(words)


class _Scalars:
    def __init__(self, inputs: Mapping[str, Array]) -> None:
        self._inputs = inputs

    def _value(self, name: str) -> Any:
        array = self._inputs.get(name)
        if array is None or array.size == 0:
            return None
        if array.size > 1:
            raise _invalid(name, f"{name} must be one value, not {array.size}")
        return array.item()

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._value(name)
        return default if value is None else bool(value)

    def integer(self, name: str, default: int) -> int:
        value = self._value(name)
        return default if value is None else int(value)

    def number(self, name: str, default: float) -> float:
        value = self._value(name)
        number = default if value is None else float(value)
        if not -1e30 < number < 1e30:
            raise _invalid(name, f"{name} is {number}; it must be a finite number")
        return number


def _generation(inputs: Mapping[str, Array], scalar: _Scalars) -> GenerationRequest:
    prompt_ids = inputs["input_ids"].reshape(-1).tolist() if "input_ids" in inputs else []
    length = scalar.integer("input_lengths", len(prompt_ids))
    if not 0 < length <= len(prompt_ids):
        raise _invalid(
            "input_lengths",
            f"input_lengths is {length}; allowed: 1 to {len(prompt_ids)}, the ids given",
        )
    return GenerationRequest(
        prompt_ids=prompt_ids[:length],
        max_new_tokens=_at_least("request_output_len", scalar.integer("request_output_len", 0), 1),
        end_id=scalar.integer("end_id", -1),
        stop_sequences=decode_word_list(inputs, "stop_words_list"),
        sampling=SamplingParams(
            temperature=_at_least("temperature", scalar.number("temperature", 1.0), 0),
            top_k=_at_least("runtime_top_k", scalar.integer("runtime_top_k", 0), 0),
            top_p=_top_p(scalar.number("runtime_top_p", 0.0)),
            seed=scalar.integer("seed", 0),
            repetition_penalty=_positive("repetition_penalty", scalar.number("repetition_penalty", 1.0)),
            presence_penalty=scalar.number("presence_penalty", 0.0),
            frequency_penalty=scalar.number("frequency_penalty", 0.0),
            min_tokens=_at_least("min_tokens", scalar.integer("min_tokens", 1), 0),
        ),
    )


def _refuse_several_rows(inputs: Mapping[str, Array]) -> None:
    ids = inputs.get("input_ids")
    if ids is not None and ids.ndim > 1 and ids.shape[0] > 1:
        raise InflightError(
            ErrorKind.UNSUPPORTED,
            f"input_ids has {ids.shape[0]} rows; one request carries one row here",
            "input_ids",
        )


def _refuse_what_is_not_honoured(inputs: Mapping[str, Array]) -> None:
    for name, is_neutral in _NOT_HONOURED.items():
        if name in inputs and not is_neutral(inputs[name]):
            raise InflightError(ErrorKind.UNSUPPORTED, f"{name} is not supported by this engine", name)
    decoder_ids = inputs.get("decoder_input_ids")
    if decoder_ids is not None and decoder_ids.size > 1:
        raise InflightError(
            ErrorKind.UNSUPPORTED,
            "decoder_input_ids is not supported by this engine: the model is decoder-only",
            "decoder_input_ids",
        )


def _at_least(name: str, value: Any, low: int) -> Any:
    if value < low:
        raise _invalid(name, f"{name} is {value}; it must be {low} or more")
    return value


def _positive(name: str, value: float) -> float:
    if value <= 0:
        raise _invalid(name, f"{name} is {value}; it must be above 0")
    return value


def _top_p(value: float) -> float:
    if value > 1:
        raise _invalid("runtime_top_p", f"runtime_top_p is {value}; it must be at most 1")
    return value


def _invalid(name: str, sentence: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, sentence, name)
