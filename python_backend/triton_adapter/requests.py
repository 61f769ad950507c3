"""Decodes one Triton request to `tensorrt_llm` into plain values, by the table of what is honoured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from python_backend.engine.request import GenerationRequest
from python_backend.triton_adapter.generation import decode_generation
from python_backend.triton_adapter.inputs import RowInputs, invalid
from python_backend.triton_adapter.pb import Array
from python_backend.triton_adapter.request_parameters import (
    decode_adapter,
    decode_cache_salt,
    decode_echo,
    decode_logit_bias,
    decode_min_p,
    decode_part,
    decode_router,
    decode_shared_prefix,
    decode_stop_token_ids,
    decode_tenant,
    decode_tier,
    decode_token_ids,
    decode_top_log_probs,
    decode_trace,
    decode_weight,
)
from python_backend.wire.engine_report import ADAPTER
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.pools import BOTH, CONTEXT_PARAMS, Part
from python_backend.wire.shared_prefix import shared_tokens


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What the model's config says about every request."""

    decoupled: bool
    exclude_input: bool
    isolate_tenants: bool
    max_sequences: int
    pool: str = BOTH


@dataclass(frozen=True, slots=True)
class StopCall:
    """Cancel the running request of the same id."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RowCall:
    """One row of a request: a prompt of its own, with its own answers."""

    generation: GenerationRequest
    streaming: bool
    echo_prompt: bool
    wants_input_count: bool
    wants_output_count: bool
    wants_perf: bool
    begins_with_prompt: bool = False
    wants_ids: bool = False


@dataclass(frozen=True, slots=True)
class GenerateCall:
    request_id: str
    rows: tuple[RowCall, ...]
    # Only preprocessing sends decoder_input_ids for a decoder-only model: the answer goes to postprocessing.
    feeds_postprocessing: bool
    router: str = ""


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
    "draft_input_ids": _is_empty,
    "draft_logits": _is_empty,
    "draft_acceptance_threshold": _is(0.0),
    "beam_width": _is(1),
    "len_penalty": _anything,
    "early_stopping": _anything,
    "beam_search_diversity_rate": _anything,
    "prompt_embedding_table": _is_empty,
    "prompt_table_extra_ids": _is_empty,
    "prompt_vocab_size": _anything,
    "cross_attention_mask": _is_empty,
    "mrope_rotary_cos_sin": _is_empty,
    "mrope_position_deltas": _is_empty,
    "lora_task_id": _is_empty,
    "lora_weights": _is_empty,
    "lora_config": _is_empty,
    "skip_cross_attn_blocks": _is_false,
    "lookahead_window_size": _is_empty,
    "lookahead_ngram_size": _is_empty,
    "lookahead_verification_set_size": _is_empty,
}


_BY_NAME = f"use the request parameter {ADAPTER} with the name of an adapter on the server"
_INSTEAD = dict.fromkeys(("lora_task_id", "lora_weights", "lora_config"), _BY_NAME)


def decode_call(
    request_id: str, inputs: Mapping[str, Array], parameters: Mapping[str, Any], rules: ModelRules
) -> GenerateCall | StopCall:
    """One request as values; raises InflightError naming the input at fault."""
    rows = inputs["input_lengths"].size if "input_lengths" in inputs else 1
    row_inputs = [RowInputs(inputs, row, rows) for row in range(rows)]
    if any(row.boolean("stop") for row in row_inputs):
        if not request_id:
            raise invalid("stop", "Trying to stop a request but request ID is not provided")
        return StopCall(request_id)
    _refuse_what_is_not_honoured(inputs, rows)
    part = decode_part(parameters, rules.pool)
    tier, salt = decode_tier(parameters), decode_cache_salt(parameters, rules.isolate_tenants)
    shared_prefix = decode_shared_prefix(parameters)
    bias, top_log_probs = decode_logit_bias(parameters), decode_top_log_probs(parameters)
    min_p, stop_ids = decode_min_p(parameters), decode_stop_token_ids(parameters)
    echoes, notes_steps = decode_echo(parameters), decode_trace(parameters)
    tenant, weight = decode_tenant(parameters), decode_weight(parameters)
    adapter = decode_adapter(parameters)
    is_from_text = "decoder_input_ids" in inputs

    def generation(row: RowInputs) -> GenerationRequest:
        asked = decode_generation(row, tier, salt, rules.max_sequences)
        asked = replace(asked, tenant=tenant, weight=weight, takes_any_ids=not is_from_text, adapter=adapter)
        if shared_prefix:
            asked = replace(asked, shared_tokens=shared_tokens(shared_prefix, asked.prompt_ids))
        if min_p:
            asked = replace(asked, sampling=replace(asked.sampling, min_p=min_p))
        if stop_ids:
            asked = replace(asked, stop_sequences=(*asked.stop_sequences, *stop_ids))
        if not bias and top_log_probs is None and not notes_steps:
            return asked
        return replace(
            asked,
            token_bias={**asked.token_bias, **bias},
            top_log_probs=top_log_probs,
            returns_prompt_log_probs=echoes and top_log_probs is not None and row.boolean("streaming"),
            notes_steps=notes_steps and row is row_inputs[0],
        )

    call = GenerateCall(
        request_id=request_id,
        rows=tuple(
            _decode_row(row, _of_part(generation(row), part, row), rules, parameters) for row in row_inputs
        ),
        feeds_postprocessing=is_from_text,
        router=decode_router(parameters),
    )
    if not rules.decoupled:
        _refuse_several_responses(call)
    return call


def _of_part(asked: GenerationRequest, part: Part, row: RowInputs) -> GenerationRequest:
    context = bytes(row.integers(CONTEXT_PARAMS))
    if bool(context) != (part is Part.GENERATION):
        raise invalid(
            CONTEXT_PARAMS,
            f"{CONTEXT_PARAMS} is the answer to a request of request_type {Part.CONTEXT.value} and only "
            f"allowed where request_type is {Part.GENERATION.value}; it is {part.value}",
        )
    if part is Part.CONTEXT:
        _refuse_beside_a_prompt(asked)
        return asked.prompt_alone
    return replace(asked, part=part, context=context) if context else asked


def _refuse_beside_a_prompt(asked: GenerationRequest) -> None:
    """Who computes a prompt for others tells nothing of it."""
    if asked.num_return_sequences > 1 or asked.asks_of_prompt:
        name = "return_context_logits" if asked.asks_of_prompt else "num_return_sequences"
        raise invalid(
            name, f"{name} is only for the engine that decodes; request_type is {Part.CONTEXT.value}"
        )


def _decode_row(
    row: RowInputs, generation: GenerationRequest, rules: ModelRules, parameters: Mapping[str, Any]
) -> RowCall:
    streaming = row.boolean("streaming")
    return RowCall(
        generation=generation,
        streaming=streaming,
        echo_prompt=not streaming and not row.boolean("exclude_input_in_output", rules.exclude_input),
        wants_input_count=row.boolean("return_num_input_tokens"),
        wants_output_count=row.boolean("return_num_output_tokens"),
        wants_perf=row.boolean("return_perf_metrics"),
        begins_with_prompt=streaming and decode_echo(parameters),
        wants_ids=decode_token_ids(parameters),
    )


def _refuse_several_responses(call: GenerateCall) -> None:
    """A model that is not decoupled answers each request with exactly one response."""
    if len(call.rows) > 1:
        raise invalid(
            "input_ids",
            "Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy",
        )
    if call.rows[0].streaming:
        raise invalid("streaming", "Streaming is only supported if model is deployed using decoupled mode.")
    if call.rows[0].generation.num_return_sequences > 1:
        raise invalid("num_return_sequences", "num_return_sequences above 1 needs a decoupled model")


def _refuse_what_is_not_honoured(inputs: Mapping[str, Array], rows: int) -> None:
    for name, is_neutral in _NOT_HONOURED.items():
        if name in inputs and not is_neutral(inputs[name]):
            instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise InflightError(
                ErrorKind.UNSUPPORTED, f"{name} is not supported by this engine{instead}", name
            )
    decoder_ids = inputs.get("decoder_input_ids")
    if decoder_ids is not None and decoder_ids.size > rows:
        raise InflightError(
            ErrorKind.UNSUPPORTED,
            "decoder_input_ids is not supported by this engine: the model is decoder-only",
            "decoder_input_ids",
        )
