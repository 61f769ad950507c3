from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.tiers import Tier
from router.control.objectives.distribution import Distribution
from router.control.objectives.standing import ENOUGH, Figures, Standing, Verdict, standing, standings
from router.core.manifest import Kind
from router.core.objective import Metric, Objective


def first_token(limit_s: float | None) -> Objective:
    return Objective("smol", Tier.STANDARD, limit_s)


@pytest.mark.parametrize(
    ("limit_s", "took_s", "count", "verdict", "sentence"),
    [
        (None, 1.0, 50, Verdict.NO_OBJECTIVE, "no objective"),
        (0.5, 1.0, 0, Verdict.NOT_MEASURED, "nothing measured"),
        (0.5, 1.0, ENOUGH - 1, Verdict.TOO_FEW, "19 of 20 needed"),
        (0.5, 0.25, 50, Verdict.KEPT, "kept, 50% to spare"),
        (0.5, 0.6, 50, Verdict.MISSED, "missed by 20%"),
        (0.5, 2.0, 50, Verdict.MISSED, "missed 4.0-fold"),
    ],
)
def test_a_verdict_is_given_in_words(
    limit_s: float | None, took_s: float, count: int, verdict: Verdict, sentence: str
) -> None:
    p95_s = took_s if count else None
    found = Standing("smol", Tier.STANDARD, Metric.FIRST_TOKEN, limit_s, count, p95_s, p95_s, None)
    assert found.verdict is verdict
    assert found.sentence == sentence


@settings(deadline=None)
@given(st.dictionaries(st.integers(200, 800), st.integers(1, 50), min_size=1), st.floats(0.001, 100))
def test_an_objective_is_kept_where_about_95_of_100_requests_kept_it(
    counts: dict[int, int], limit_s: float
) -> None:
    found = standing(first_token(limit_s), Metric.FIRST_TOKEN, Distribution(counts))
    assert found.attained is not None
    if found.verdict is Verdict.KEPT:
        assert found.attained >= 0.95 - 1e-9
    if found.verdict is Verdict.MISSED:
        assert found.attained <= 0.95 + 1 / found.samples


def test_a_model_is_shown_by_the_metrics_of_its_kind() -> None:
    nothing = Objective("smol", Tier.STANDARD)
    assert [each.metric for each in standings(Kind.TEXT, nothing, Figures())] == [
        Metric.FIRST_TOKEN,
        Metric.INTER_TOKEN,
    ]
    assert [each.metric for each in standings(Kind.EMBEDDINGS, nothing, Figures())] == [Metric.END_TO_END]
    assert standings(None, nothing, Figures()) == []
    assert [each.metric for each in standings(None, first_token(1.0), Figures())] == [Metric.FIRST_TOKEN]


def test_refused_requests_are_reported_once_and_with_the_verdict() -> None:
    figures = Figures({Metric.FIRST_TOKEN: {500: 30}, Metric.INTER_TOKEN: {400: 300}}, refused=10)
    first, between = standings(Kind.TEXT, first_token(60.0), figures)
    assert (first.refused, between.refused) == (10, 0)
    assert first.verdict is Verdict.KEPT
    assert first.sentence.endswith("to spare; 25% refused")
    assert between.sentence == "no objective"
    assert not figures.is_empty
    assert Figures({Metric.FIRST_TOKEN: {}}).is_empty
