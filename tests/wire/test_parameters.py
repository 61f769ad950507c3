from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from python_backend.costs.step_cost import StepCost
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import (
    DEVICES,
    PRECISIONS,
    DeviceSettings,
    EngineParameters,
    device_defaults,
    on_server,
    parse_engine_parameters,
)

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


def test_cache_reuse_and_isolation_are_chosen_by_parameters() -> None:
    parameters = parse(enable_kv_cache_reuse="false", inflight_tenant_cache_isolation="false")
    assert not parameters.enable_kv_cache_reuse
    assert not parameters.inflight_tenant_cache_isolation


def test_tenants_are_kept_apart_unless_somebody_says_otherwise() -> None:
    assert parse().inflight_tenant_cache_isolation


def test_the_pace_of_an_engine_without_a_model_is_a_cost() -> None:
    parameters = parse(inflight_runtime="paced", inflight_paced_cost="8, 0.05,0.1,1e-3")
    assert parameters.inflight_paced_cost == StepCost(8, 0.05, 0.1, 0.001)
    assert parse().inflight_paced_cost.base_ms > 0


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
        ("inflight_runtime", "slow", "auto, engine, vllm, llm, synthetic, paced"),
        ("inflight_paced_cost", "12,0.1", "base_ms,prefill_token_ms,decode_sequence_ms,kv_kilotoken_ms"),
        ("inflight_paced_cost", "12,a,1,0", "such as 12,0.12,0.25,0"),
        ("inflight_paced_cost", "12,-1,1,0", "none below 0"),
        ("inflight_paced_cost", "12,1,inf,0", "none below 0"),
        ("inflight_paced_cost", "0,1,1,0", "base_ms above 0"),
        ("inflight_paced_noise", "2", "from 0 to 1"),
        ("inflight_paced_noise", "loud", "from 0 to 1"),
        ("exclude_input_in_output", "yes", "true or false"),
        ("enable_kv_cache_reuse", "maybe", "true or false"),
        ("guided_decoding_backend", "outlines", "xgrammar or llguidance"),
        ("inflight_precision", "fp16", "auto, fp32, int8, int4, bf16, fp8"),
        ("inflight_kv_precision", "fp16", "auto, fp8"),
        ("inflight_device", "tpu", "auto, cpu, cuda"),
        ("inflight_weights", "none", "checkpoint, random"),
        ("kv_cache_free_gpu_mem_fraction", "0", "above 0, up to 1"),
        ("kv_cache_free_gpu_mem_fraction", "1.1", "above 0, up to 1"),
        ("kv_cache_free_gpu_mem_fraction", "most", "above 0, up to 1"),
        ("gpu_device_ids", "0,1;2,3", "triton_servers starts one engine"),
        ("gpu_device_ids", "0,0", "several different ones"),
        ("gpu_device_ids", "-1", "one GPU"),
        ("cuda_graph_mode", "often", "true or false"),
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
def test_an_unsupported_engine_parameter_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InflightError, match=key) as failure:
        parse(**{key: value})
    assert failure.value.kind is ErrorKind.UNSUPPORTED


def test_a_step_has_a_token_for_every_sequence_of_the_batch() -> None:
    with pytest.raises(
        InflightError, match=r"max_step_tokens is '63'; allowed: inflight_max_batch_size \(64\)"
    ):
        parse(inflight_max_step_tokens="63", inflight_max_batch_size="64")
    assert parse(inflight_max_step_tokens="3", inflight_max_batch_size="3").inflight_max_batch_size == 3


@given(some.sampled_from(DEVICES), some.integers(1, 10_000))
def test_a_batch_that_is_not_set_is_no_larger_than_a_step_that_is(device: str, step_tokens: int) -> None:
    found = parse(inflight_max_step_tokens=str(step_tokens)).on(device)
    assert found.max_step_tokens == step_tokens
    assert found.max_batch_size == min(step_tokens, device_defaults(device).max_batch_size)


def test_each_device_has_its_own_defaults() -> None:
    assert parse().on("cpu") == DeviceSettings("int8", 64, 512, 16)
    assert parse().on("cuda").precision == "bf16"
    assert parse(inflight_max_batch_size="7").on("cuda").max_batch_size == 7
    for device in DEVICES:
        assert parse(inflight_device=device).on(device) == device_defaults(device)


@given(some.sampled_from(DEVICES), some.sampled_from(sorted({*PRECISIONS["cpu"], *PRECISIONS["cuda"]})))
def test_a_precision_is_accepted_or_refused_by_name_on_each_device(device: str, precision: str) -> None:
    """Where the engine is to choose the device, the question is asked when it has."""
    undecided = parse(inflight_precision=precision)
    if precision in PRECISIONS[device]:
        assert undecided.on(device).precision == precision
        assert parse(inflight_precision=precision, inflight_device=device).inflight_precision == precision
        return
    allowed = ", ".join(("auto", *PRECISIONS[device]))
    decided_by = {"cpu": "this machine computes on the CPU", "cuda": "this machine computes on a GPU"}
    for ask, why in (
        (lambda: undecided.on(device), decided_by[device]),
        (
            lambda: parse(inflight_precision=precision, inflight_device=device),
            f"inflight_device is {device}",
        ),
    ):
        with pytest.raises(InflightError) as failure:
            ask()
        assert failure.value.message == (
            f"parameter inflight_precision is {precision!r}; allowed: {allowed} ({why})"
        )


def test_fp8_keys_and_values_are_kept_on_a_gpu_only() -> None:
    assert parse(inflight_kv_precision="fp8").inflight_kv_precision == "fp8"
    why = r"inflight_kv_precision is 'fp8'; allowed: auto \(inflight_device is cpu\)"
    with pytest.raises(InflightError, match=why):
        parse(inflight_kv_precision="fp8", inflight_device="cpu")


def test_random_weights_are_made_on_a_gpu_only() -> None:
    assert parse(inflight_weights="random").on("cuda").precision == "bf16"
    with pytest.raises(InflightError, match=r"inflight_weights is 'random'; allowed: checkpoint"):
        parse(inflight_weights="random", inflight_device="cpu")


def test_the_contracts_gpu_parameters_are_honoured() -> None:
    parameters = parse(kv_cache_free_gpu_mem_fraction="0.5", gpu_device_ids="2", cuda_graph_mode="false")
    assert parameters.kv_cache_free_gpu_mem_fraction == 0.5
    assert parameters.gpu == 2
    assert not parameters.cuda_graph_mode
    assert (parse().kv_cache_free_gpu_mem_fraction, parse().gpu, parse().cuda_graph_mode) == (
        0.9,
        0,
        True,
    )


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InflightError, match=r"unknown parameter max_tokenz; known: .*gpt_model_path"):
        parse(max_tokenz="1")


@pytest.mark.parametrize("key", MINIMUM)
def test_required_keys_must_be_present(key: str) -> None:
    with pytest.raises(InflightError, match=key):
        parse_engine_parameters({**MINIMUM, key: ""})


def test_a_servers_pool_is_that_of_its_models_unless_one_names_another() -> None:
    server = {"INFLIGHT_POOL": "prefill", "INFLIGHT_KV_FOLDER": "/kv", "PATH": "/bin"}
    parameters = parse_engine_parameters(on_server({**MINIMUM, "inflight_pool": "${pool}"}, server))
    assert (parameters.inflight_pool, parameters.inflight_kv_folder) == ("prefill", "/kv")
    named = parse_engine_parameters(on_server({**MINIMUM, "inflight_pool": "decode"}, server))
    assert named.inflight_pool == "decode"
    assert parse_engine_parameters(on_server(MINIMUM, {})) == parse()
    with pytest.raises(InflightError, match="inflight_pool is 'prompts'; allowed: both, prefill, decode"):
        parse_engine_parameters(on_server(MINIMUM, {"INFLIGHT_POOL": "prompts"}))
