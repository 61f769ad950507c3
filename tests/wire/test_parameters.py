from __future__ import annotations

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters, parse_engine_parameters

MINIMUM = {"gpt_model_type": "inflight_fused_batching", "gpt_model_path": "/checkpoint"}


def parse(**changes: str) -> EngineParameters:
    return parse_engine_parameters({**MINIMUM, **changes})


def test_defaults_are_those_of_the_contract() -> None:
    parameters = parse()
    assert parameters.batch_scheduler_policy == "guaranteed_no_evict"
    assert parameters.cancellation_check_period_ms == 100
    assert parameters.exclude_input_in_output is False
    assert parameters.enable_kv_cache_reuse is True
    assert not parameters.static_batching


def test_an_unfilled_placeholder_means_the_default() -> None:
    assert parse(max_tokens_in_paged_kv_cache="${max_tokens_in_paged_kv_cache}") == parse()
    assert parse(max_beam_width="${max_beam_width}", decoding_mode="") == parse()


@pytest.mark.parametrize("value", ["xgrammar", "llguidance", ""])
def test_guides_are_the_engines_own_whatever_the_backend_is_called(value: str) -> None:
    assert parse(guided_decoding_backend=value) == parse()


def test_what_the_cache_does_is_chosen_by_parameters() -> None:
    parameters = parse(enable_kv_cache_reuse="false", inflight_tenant_cache_isolation="true")
    assert not parameters.enable_kv_cache_reuse
    assert parameters.inflight_tenant_cache_isolation


@pytest.mark.parametrize("value", ["V1", "v1"])
def test_v1_is_static_batching(value: str) -> None:
    assert parse(gpt_model_type=value).static_batching


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("gpt_model_type", "orca", "inflight_fused_batching"),
        ("batch_scheduler_policy", "fair", "guaranteed_no_evict, max_utilization"),
        ("max_tokens_in_paged_kv_cache", "-5", "above 0"),
        ("max_tokens_in_paged_kv_cache", "many", "above 0"),
        ("inflight_synthetic_tokens_per_s", "inf", "above 0"),
        ("exclude_input_in_output", "yes", "true or false"),
        ("enable_kv_cache_reuse", "maybe", "true or false"),
        ("guided_decoding_backend", "outlines", "xgrammar or llguidance"),
        ("inflight_precision", "fp8", "fp32, int8, int4"),
        ("inflight_guide_compile_limit_s", "0", "above 0"),
    ],
)
def test_a_bad_value_is_refused_naming_key_value_and_what_is_allowed(
    key: str, value: str, allowed: str
) -> None:
    with pytest.raises(InflightError) as failure:
        parse(**{key: value})
    assert key in failure.value.message
    assert value in failure.value.message
    assert allowed in failure.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_beam_width", "4"), ("decoding_mode", "medusa"), ("lora_prefetch_dir", "/lora")],
)
def test_what_the_engine_does_not_do_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InflightError, match=key) as failure:
        parse(**{key: value})
    assert failure.value.kind is ErrorKind.UNSUPPORTED


def test_a_step_has_a_token_for_every_sequence_of_the_batch() -> None:
    assert parse(inflight_max_step_tokens="64").inflight_max_step_tokens == 64
    with pytest.raises(
        InflightError, match=r"max_step_tokens is '63'; allowed: inflight_max_batch_size \(64\)"
    ):
        parse(inflight_max_step_tokens="63")
    assert parse(inflight_max_step_tokens="3", inflight_max_batch_size="3").inflight_max_batch_size == 3


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InflightError, match=r"unknown parameter max_tokenz; known: .*gpt_model_path"):
        parse(max_tokenz="1")


@pytest.mark.parametrize("key", MINIMUM)
def test_required_keys_must_be_there(key: str) -> None:
    with pytest.raises(InflightError, match=key):
        parse_engine_parameters({**MINIMUM, key: ""})
