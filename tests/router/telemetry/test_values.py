from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.values import Counter, Gauge, Histogram

BUCKETS = (0.005, 0.1, 1.0, 30.0)


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.005, 0.05, 1.0, 31.0]))))
def test_our_metrics_are_those_of_prometheus_own_client(seen: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histograms = (
        Histogram("h", "text", ("model",), BUCKETS, ours),
        prometheus_client.Histogram("h", "text", ("model",), buckets=BUCKETS, registry=theirs),
    )
    counters = (
        Counter("c", "text", ("model",), ours),
        prometheus_client.Counter("c", "text", ("model",), registry=theirs),
    )
    gauges = (
        Gauge("g", "text", ("model",), ours),
        prometheus_client.Gauge("g", "text", ("model",), registry=theirs),
    )
    for model, value in seen:
        for histogram in histograms:
            histogram.labels(model).observe(value)
        for counter in counters:
            counter.labels(model).inc(value)
        for gauge in gauges:
            gauge.labels(model).inc()
            gauge.labels(model).dec(value)
    assert samples(ours) == samples(theirs)


def test_a_missing_label_is_an_error() -> None:
    with pytest.raises(ValueError, match="c has the labels model, tenant"):
        Counter("c", "text", ("model", "tenant"), CollectorRegistry()).labels("a")
