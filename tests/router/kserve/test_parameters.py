from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.kserve.parameters import Parameters, Plain, read_parameters
from tests.router.kserve.asking import is_clear, outcome

PLAIN = st.one_of(st.booleans(), st.integers(), st.floats(), st.text())


def test_documented_parameters_are_accepted() -> None:
    given = {
        "add_special_tokens": False,
        "inflight_tier": "batch",
        "inflight_literal_mark": "x7f3a",
        "inflight_logit_bias": '{"11": -100}',
        "inflight_min_p": 0.05,
        "inflight_stop_token_ids": "[2, 11]",
        "inflight_special_tokens": True,
        "triton_enable_empty_final_response": True,
        "binary_data_output": True,
        "request_type": "context_and_generation",
    }
    to_model: dict[str, Plain] = {
        "add_special_tokens": False,
        "inflight_literal_mark": "x7f3a",
        "inflight_logit_bias": '{"11":-100.0}',
        "inflight_min_p": "0.05",
        "inflight_stop_token_ids": "[2,11]",
        "inflight_special_tokens": True,
    }
    expected = Parameters(to_model, empty_final=True, binary_output=True, tier=Tier.BATCH)
    assert read_parameters(given) == expected


@pytest.mark.parametrize(
    "name",
    [
        "tenant",
        "triton_final_response",
        "triton_anything",
        "inflight_configure",
        "inflight_report",
        "inflight_cache_salt",
        "sequence_id",
        "headers",
        "unknown",
        "\0" * 100,
    ],
)
def test_reserved_and_unknown_parameters_are_refused_by_name(name: str) -> None:
    with pytest.raises(InflightError, match="is not supported") as refused:
        read_parameters({name: True})
    assert refused.value.message.isprintable()


@pytest.mark.parametrize(
    ("priority", "tier"),
    [(0, Tier.STANDARD), (1, Tier.INTERACTIVE), (2, Tier.STANDARD), (3, Tier.BATCH), (2**32 - 1, Tier.BATCH)],
)
def test_a_priority_is_a_tier_and_the_lowest_number_goes_first(priority: int, tier: Tier) -> None:
    assert read_parameters({"priority": priority}).tier is tier
    named = read_parameters({"priority": priority, "inflight_tier": "batch"})
    assert named.tier is Tier.BATCH


def test_a_timeout_is_in_microseconds_and_0_is_none() -> None:
    assert read_parameters({"timeout": 1_500_000}).timeout_s == 1.5
    assert read_parameters({"timeout": 0}).timeout_s == math.inf


@pytest.mark.parametrize("value", [-1, True, 1.5, "1", 2**64])
@pytest.mark.parametrize("name", ["priority", "timeout"])
def test_a_priority_or_timeout_out_of_range_is_refused_with_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(InflightError, match=f"parameter '{name}': allowed are 1"):
        read_parameters({name: value})


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        ("inflight_min_p", ("", "x", -0.1, 1.5, True, float("nan"), 10**400), "0 to 1"),
        ("inflight_stop_token_ids", ("", "{}", "[-1]", "[1.5]", 2, str([1] * 65)), "up to 64 token ids"),
        ("inflight_special_tokens", ("true", 1), "true and false"),
    ],
)
def test_a_sampling_parameter_out_of_range_is_refused_with_what_is_allowed(
    name: str, values: tuple[object, ...], allowed: str
) -> None:
    for value in values:
        with pytest.raises(InflightError, match=rf"parameter '{name}': allowed .*{allowed}"):
            read_parameters({name: value})


@pytest.mark.parametrize("mark", ["", "x" * 65, 1, True])
def test_a_mark_that_marks_nothing_is_refused(mark: object) -> None:
    with pytest.raises(InflightError, match="a text of up to 64 characters"):
        read_parameters({"inflight_literal_mark": mark})


@pytest.mark.parametrize("tier", ["", "first", 1, True, 0.5])
def test_an_unknown_tier_is_refused(tier: object) -> None:
    with pytest.raises(InflightError, match="interactive, standard, batch"):
        read_parameters({"inflight_tier": tier})


@pytest.mark.parametrize("bias", ["", "[]", '{"a": 1}', '{"1": 101}', '{"1": "x"}', "{" * 1000, 5, True])
def test_a_logit_bias_that_the_openai_api_would_refuse_is_refused(bias: object) -> None:
    with pytest.raises(InflightError, match="300 token ids"):
        read_parameters({"inflight_logit_bias": bias})


@settings(deadline=None)
@given(st.dictionaries(st.text(), PLAIN, max_size=40))
def test_no_undocumented_parameter_reaches_a_model(given: dict[str, object]) -> None:
    found = outcome(lambda: read_parameters(given))
    assert is_clear(found)
    if isinstance(found, Parameters):
        assert set(found.to_model) <= {"add_special_tokens", "inflight_literal_mark", "inflight_logit_bias"}
