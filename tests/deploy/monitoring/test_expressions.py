"""Reading PromQL: what is wrong with an expression is said, and what it gives is known."""

from __future__ import annotations

import pytest

from deploy.monitoring.expressions import ExpressionError, KnownMetric, labels_of, metrics_in

KNOWN = {
    "a_total": KnownMetric(frozenset({"model", "tier"}), {"tier": frozenset({"fast", "slow"})}),
    "b": KnownMetric(frozenset({"model"})),
    "c_seconds_bucket": KnownMetric(frozenset({"model", "le"})),
}


@pytest.mark.parametrize(
    ("expr", "labels"),
    [
        ("a_total", {"model", "tier", "job", "instance"}),
        ("sum by (model) (rate(a_total[5m]))", {"model"}),
        ("sum without (job, instance) (b)", {"model"}),
        ("sum(b) + 1", set()),
        ('max by (tier) (a_total{model=~"$model",tier=~"fast|slow"})', {"tier"}),
        (
            "histogram_quantile(0.95, sum by (le, model) (rate(c_seconds_bucket[$__rate_interval])))",
            {"model"},
        ),
        ("sum by (model, tier) (a_total) / on (model) group_left () sum by (model) (b)", {"model", "tier"}),
        ("sum by (model, tier) (a_total) and on (model) (b > 0)", {"model", "tier"}),
        ("sum by (model) (a_total) > on (model) sum by (model) (b)", {"model"}),
        ("topk(3, sum by (model) (b))", {"model"}),
        ("scalar(sum(b)) * sum by (model) (b)", {"model"}),
    ],
)
def test_the_labels_of_a_result_are_found(expr: str, labels: set[str]) -> None:
    assert labels_of(expr, KNOWN) == labels


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("sum by (model) (rate(a_total[5m])", "sum by"),
        ("rate(d_total[5m])", "there is no metric d_total"),
        ('a_total{tenant="x"}', "a_total has no label tenant"),
        ('a_total{tier="fats"}', "a_total has no tier fats"),
        ('a_total{tier=~"fast|slwo"}', "a_total has no tier slwo"),
        ("sum by (tenant) (a_total)", "sum has no label tenant"),
        ("sum by (model, tier) (a_total) / sum by (model) (b)", "never match"),
        ("a_total and on (tier) b", "and has no label tier"),
        ("histogram_quantile(0.95, sum by (model) (rate(c_seconds_bucket[5m])))", "has no label le"),
    ],
)
def test_an_error_in_an_expression_is_reported(expr: str, complaint: str) -> None:
    with pytest.raises(ExpressionError, match=complaint):
        labels_of(expr, KNOWN)


def test_metrics_are_found_at_any_depth() -> None:
    expr = "sum(rate(a_total[5m])) / scalar(sum(b)) and on () absent(up{job='x'}) or max_over_time(d[5m:1m])"
    assert metrics_in(expr) == {"a_total", "b", "up", "d"}
