"""The next step is launched late enough for newcomers, and early enough for the device."""

from hypothesis import given
from hypothesis import strategies as st

from python_backend.costs.step_cost import LearnedStepCost, StepCost, StepShape
from python_backend.engine.steps.launch_time import LaunchTime

COST = StepCost(base_ms=4.0, prefill_token_ms=0.02, decode_sequence_ms=0.03)
EIGHT = StepShape(0, 8, 0)


def learned(error: float = 0.0, is_frozen: bool = False) -> LearnedStepCost:
    return LearnedStepCost(COST, 500, error, is_frozen)


@given(
    st.integers(0, 64), st.integers(0, 4096), st.floats(0, 1), st.integers(0, 10**8), st.integers(0, 10**8)
)
def test_a_launch_never_waits_beyond_the_end_of_the_step_that_runs(
    sequences: int, tokens: int, error: float, began_ns: int, later_ns: int
) -> None:
    shape, now_ns = StepShape(tokens, sequences, 0), began_ns + later_ns
    spare_ns = LaunchTime().spare_ns(learned(error), shape, began_ns, now_ns)
    assert spare_ns >= 0
    assert now_ns + spare_ns <= max(now_ns, began_ns + 1e6 * COST.step_ms(shape))


def test_a_launch_waits_until_shortly_before_the_end_of_a_step_whose_time_is_known() -> None:
    timing = LaunchTime()
    ends_ns = int(1e6 * COST.step_ms(EIGHT))
    assert timing.spare_ns(learned(), EIGHT, 0, 1_000_000) == ends_ns - timing.margin_ns - 1_000_000


def test_a_launch_does_not_wait_where_steps_cannot_be_foretold() -> None:
    timing = LaunchTime()
    unknown = [None, learned(error=0.4), learned(is_frozen=True)]
    assert [timing.spare_ns(cost, EIGHT, 0, 0) for cost in unknown] == [0, 0, 0]


def test_late_launches_widen_the_margin_much_and_the_others_narrow_it_little() -> None:
    timing = LaunchTime()
    first_ns = timing.margin_ns
    timing.launched(is_late=True)
    late_ns = timing.margin_ns
    timing.launched(is_late=False)
    assert first_ns < timing.margin_ns < late_ns
    assert late_ns - first_ns > 50 * (late_ns - timing.margin_ns)


@given(st.lists(st.booleans(), max_size=300))
def test_the_margin_stays_within_its_bounds_whatever_happens(lates: list[bool]) -> None:
    timing = LaunchTime()
    for is_late in lates:
        timing.launched(is_late)
        assert 500_000 <= timing.margin_ns <= 5_000_000
