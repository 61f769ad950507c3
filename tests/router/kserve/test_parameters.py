from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.kserve.offers import Parameters, Plain, read_parameters
from tests.router.kserve.asking import is_clear, outcome

PLAIN = st.one_of(st.booleans(), st.integers(), st.floats(), st.text())


def test_documented_parameters_are_accepted() -> None:
    given = {
        "add_special_tokens": False,
        "inflight_tier": "batch",
        "inflight_literal_mark": "x7f3a",
        "inflight_logit_bias": '{"11": -100}',
        "triton_enable_empty_final_response": True,
        "binary_data_output": True,
        "request_type": "context_and_generation",
    }
    to_model: dict[str, Plain] = {
        "add_special_tokens": False,
        "inflight_literal_mark": "x7f3a",
        "inflight_logit_bias": '{"11":-100.0}',
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
        "priority",
        "timeout",
        "sequence_id",
        "headers",
        "unknown",
        "\0" * 100,
    ],
)
def test_reserved_and_unknown_parameters_are_refused_by_name(name: str) -> None:
    with pytest.raises(InflightError, match="is not taken") as refused:
        read_parameters({name: True})
    assert refused.value.message.isprintable()


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
