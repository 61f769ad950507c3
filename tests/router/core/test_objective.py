from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.tiers import Tier
from router.core.manifest import Kind
from router.core.objective import Metric, Objective, metrics_of

LIMITS = st.one_of(st.none(), st.floats(0.001, 3600))


@settings(deadline=None)
@given(LIMITS, LIMITS, LIMITS, st.dictionaries(st.sampled_from(Metric), LIMITS))
def test_setting_some_limits_of_an_objective_keeps_the_others(
    first: float | None, between: float | None, whole: float | None, wanted: dict[Metric, float | None]
) -> None:
    before = Objective("smol", Tier.BATCH, first, between, whole)
    after = before.wanting(wanted)
    assert (after.model, after.tier) == ("smol", Tier.BATCH)
    for metric in Metric:
        assert after.limit_s(metric) == wanted.get(metric, before.limit_s(metric))
    assert after.is_empty == all(after.limit_s(metric) is None for metric in Metric)


@pytest.mark.parametrize("wrong", [0.0, -1.0, 0.0009, 3601.0, float("nan"), float("inf")])
@pytest.mark.parametrize("metric", Metric)
def test_an_impossible_limit_is_refused_by_name(metric: Metric, wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"{metric.field}: expected 0.001 to 3600 seconds"):
        Objective("smol", Tier.STANDARD).wanting({metric: wrong})


def test_only_text_models_are_measured_by_token() -> None:
    assert metrics_of(Kind.TEXT) == (Metric.FIRST_TOKEN, Metric.INTER_TOKEN)
    assert metrics_of(Kind.EMBEDDINGS) == metrics_of(Kind.TENSORS) == (Metric.END_TO_END,)
