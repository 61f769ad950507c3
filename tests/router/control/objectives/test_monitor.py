from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.tiers import Tier
from router.control.objectives.distribution import bucket_of
from router.control.objectives.monitor import SLOT_S, WINDOW_S, ObjectiveMonitor
from router.core.objective import Metric, Objective
from tests.tiers import examples

MODEL = "smol"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_models_tiers_and_metrics_are_measured_apart() -> None:
    monitor = ObjectiveMonitor(Clock())
    monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    monitor.inter_token(MODEL, Tier.STANDARD, 0.05, 4)
    monitor.end_to_end("vectors", Tier.BATCH, 0.02)
    assert monitor.window(MODEL, Tier.STANDARD, Metric.FIRST_TOKEN).samples == 1
    assert monitor.window(MODEL, Tier.STANDARD, Metric.INTER_TOKEN).samples == 4
    assert monitor.window("vectors", Tier.BATCH, Metric.END_TO_END).samples == 1
    for other in (MODEL, Tier.BATCH), ("vectors", Tier.STANDARD), ("none", Tier.STANDARD):
        assert all(monitor.window(*other, metric).samples == 0 for metric in Metric)
    assert {(model, tier) for model, tier, _ in monitor.all_series()} == {
        (MODEL, Tier.STANDARD),
        ("vectors", Tier.BATCH),
    }, "who only looks makes nothing"


def test_refusals_are_counted_beside_the_measurements() -> None:
    clock = Clock()
    monitor = ObjectiveMonitor(clock)
    assert monitor.refusals(MODEL, Tier.STANDARD) == 0
    for _ in range(3):
        monitor.refused(MODEL, Tier.STANDARD)
    assert (monitor.refusals(MODEL, Tier.STANDARD), monitor.refusals(MODEL, Tier.BATCH)) == (3, 0)
    assert all(monitor.window(MODEL, Tier.STANDARD, metric).samples == 0 for metric in Metric)
    clock.now_s += WINDOW_S
    assert monitor.refusals(MODEL, Tier.STANDARD) == 0


def test_a_window_ends_when_its_time_has_passed() -> None:
    clock = Clock()
    monitor = ObjectiveMonitor(clock)
    monitor.first_token(MODEL, Tier.STANDARD, 5.0)
    clock.now_s += 60
    monitor.first_token(MODEL, Tier.STANDARD, 0.5)
    whole = monitor.window(MODEL, Tier.STANDARD, Metric.FIRST_TOKEN)
    newest = monitor.window(MODEL, Tier.STANDARD, Metric.FIRST_TOKEN, 30)
    assert (whole.samples, newest.samples) == (2, 1)
    assert newest.p95_s is not None
    assert 0.48 < newest.p95_s < 0.52
    clock.now_s += WINDOW_S - 60
    assert monitor.window(MODEL, Tier.STANDARD, Metric.FIRST_TOKEN).samples == 1
    clock.now_s += 60
    assert monitor.window(MODEL, Tier.STANDARD, Metric.FIRST_TOKEN).samples == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), st.floats(1e-4, 10), st.integers(1, 3)), max_size=60))
def test_the_running_sum_is_the_sum_of_the_window(
    events: list[tuple[float, float, int]],
) -> None:
    clock = Clock()
    monitor = ObjectiveMonitor(clock)
    noted: list[tuple[int, int, int]] = []
    for pause_s, took_s, count in events:
        clock.now_s += pause_s
        monitor.inter_token(MODEL, Tier.STANDARD, took_s, count)
        noted.append((int(clock.now_s / SLOT_S), bucket_of(took_s), count))
    slot = int(clock.now_s / SLOT_S)
    for last_s in (SLOT_S, 30.0, WINDOW_S):
        expected: dict[int, int] = {}
        for at, bucket, count in noted:
            if at > slot - last_s / SLOT_S:
                expected[bucket] = expected.get(bucket, 0) + count
        assert monitor.measured(MODEL, Tier.STANDARD, Metric.INTER_TOKEN, last_s).counts == expected


@settings(deadline=None, max_examples=examples(30))
@given(
    st.lists(
        st.tuples(st.floats(1e-4, 10), st.integers(1, 3), st.sampled_from([None, 0.5, 2.0])), max_size=30
    )
)
def test_each_sample_is_judged_once_by_the_objective_of_its_moment(
    events: list[tuple[float, int, float | None]],
) -> None:
    monitor, judged, missed = ObjectiveMonitor(Clock()), 0, 0
    for took_s, count, limit_s in events:
        asked = [] if limit_s is None else [Objective(MODEL, Tier.STANDARD, inter_token_s=limit_s)]
        monitor.hold_to(asked)
        monitor.inter_token(MODEL, Tier.STANDARD, took_s, count)
        monitor.inter_token(MODEL, Tier.BATCH, took_s, count)
        judged += 0 if limit_s is None else count
        missed += count if limit_s is not None and took_s > limit_s else 0
    series = monitor.series(MODEL, Tier.STANDARD)
    assert (series.inter_token.judged, series.inter_token.missed) == (judged, missed)
    assert (series.first_token.judged, monitor.series(MODEL, Tier.BATCH).inter_token.judged) == (0, 0)


def test_a_monitors_memory_does_not_grow_with_its_samples() -> None:
    clock = Clock()
    monitor = ObjectiveMonitor(clock)
    series = monitor.series(MODEL, Tier.STANDARD).inter_token
    for number in range(20_000):
        clock.now_s += 0.5
        series.note(0.01 + number % 100 / 1000)
    assert len(series._former) <= WINDOW_S / SLOT_S
    assert len(series._total) <= 100
