"""What Triton has counted, and what of it is new."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from router.control.tuning.statistics import Totals, totals_of

numbers = st.integers(0, 10**9)
totals = st.builds(
    Totals,
    numbers,
    numbers,
    numbers,
    numbers,
    numbers,
    st.dictionaries(st.integers(1, 64), st.tuples(numbers, numbers), max_size=4),
    numbers,
    numbers,
)


@settings(deadline=None)
@given(totals, totals)
def test_new_statistics_are_what_was_added_since(before: Totals, news: Totals) -> None:
    found = before.plus(news).since(before)
    assert found is not None
    assert (found.requests, found.rows, found.failures) == (news.requests, news.rows, news.failures)
    assert found.busy_ms == news.busy_ms
    assert (found.queue_ns, found.compute_ns) == (news.queue_ns, news.compute_ns)
    assert {rows: each for rows, each in found.batches.items() if each != (0, 0)} == {
        rows: each for rows, each in news.batches.items() if each != (0, 0)
    }


def test_a_model_whose_counters_restarted_has_no_news() -> None:
    before = Totals(10, 20, 5, 0, 100, {4: (5, 100)})
    assert Totals(3, 6, 2, 0, 30, {3: (2, 30)}).since(before) is None
    assert Totals(11, 21, 6, 0, 130, {3: (2, 30)}).since(before) is None


def test_statistics_of_all_versions_and_batch_parts_are_added_up() -> None:
    answer = service_pb2.ModelStatisticsResponse()
    for _ in range(2):
        model = answer.model_stats.add(inference_count=8, execution_count=2)
        model.inference_stats.success.count = 4
        model.inference_stats.success.ns = 40_000_000
        model.inference_stats.fail.count = 1
        model.inference_stats.queue.ns = 9_000_000
        model.inference_stats.compute_input.ns = model.inference_stats.compute_infer.ns = 1_000_000
        batch = model.batch_stats.add(batch_size=4)
        batch.compute_infer.count = 2
        for part in (batch.compute_input, batch.compute_infer, batch.compute_output):
            part.ns = 2_000_000
    found = totals_of(answer)
    assert (found.requests, found.rows, found.executions, found.failures) == (8, 16, 4, 2)
    assert found.mean_ms == 10
    assert (found.queue_ns, found.compute_ns) == (18_000_000, 4_000_000)
    assert list(found.mean_batches()) == [(4, 3.0, 4)]
