"""What happened between two looks at a metrics page."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.commands.top.scrape import ScrapeDelta, quantile, read_scrape

PAGE = """\
# TYPE asked counter
asked_total{model="a",tenant="x"} 10.0
asked_total{model="a",tenant="y"} 5.0
asked_total{model="b",tenant="x"} 1.0
# TYPE took histogram
took_bucket{le="0.1"} 4.0
took_bucket{le="1.0"} 8.0
took_bucket{le="+Inf"} 8.0
took_count 8.0
took_sum 3.0
"""
LATER = """\
# TYPE asked counter
asked_total{model="a",tenant="x"} 16.0
asked_total{model="a",tenant="y"} 2.0
asked_total{model="b",tenant="x"} 1.0
asked_total{model="b",tenant="z"} 4.0
# TYPE took histogram
took_bucket{le="0.1"} 4.0
took_bucket{le="1.0"} 18.0
took_bucket{le="+Inf"} 18.0
took_count 18.0
took_sum 8.0
"""


def test_metric_values_are_summed_by_the_requested_labels() -> None:
    page = read_scrape(PAGE, 0.0)
    assert page.value("asked_total", model="a") == 15
    assert page.value("asked_total", tenant="x") == 11
    assert page.value("asked_total", tenant="nobody") is None
    assert page.label_values("asked_total", "model") == {("a",), ("b",)}


def test_a_restarted_counter_counts_from_zero() -> None:
    between = ScrapeDelta(read_scrape(PAGE, 100.0), read_scrape(LATER, 104.0))
    assert between.grown("asked_total", model="a") == 6 + 2
    assert between.rate("asked_total", model="b") == 1.0
    assert between.grown("no_such_total") == 0.0


def test_quantiles_cover_only_the_time_between_two_scrapes() -> None:
    between = ScrapeDelta(read_scrape(PAGE, 100.0), read_scrape(LATER, 104.0))
    assert between.quantile("took", 0.5) == pytest.approx(0.55)
    assert ScrapeDelta(between.new, between.new).quantile("took", 0.5) is None
    assert between.quantile("no_such", 0.5) is None


def test_a_quantile_above_the_last_bound_is_that_bound() -> None:
    assert quantile([(0.1, 1.0), (inf, 10.0)], 0.95) == 0.1
    assert quantile([], 0.5) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_where_its_rank_is(counts: list[int], part: float) -> None:
    buckets = [(float(bound + 1), float(sum(counts[: bound + 1]))) for bound in range(len(counts))]
    found = quantile(buckets, part)
    if not sum(counts):
        assert found is None
    else:
        assert found is not None
        below = sum(count for bound, count in enumerate(counts) if bound + 1 < found)
        assert below <= part * sum(counts) + 1e-6
        assert 0 <= found <= len(counts)


def test_a_page_that_is_not_metrics_is_refused() -> None:
    for text in ("", "<html>no</html>"):
        with pytest.raises(ValueError, match=r"metrics|could not convert|html"):
            read_scrape(text, 0.0)
