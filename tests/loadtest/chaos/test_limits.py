"""Limits hold what the design promises, and grow with nothing but the machine's own slowness."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.chaos.limits import FOUND_WITHIN_S, Calm, rest_limit_s, silence_limit_s

SECONDS, CROWDING = st.floats(0, 1000), st.floats(0.1, 100)
CALM = st.builds(Calm, SECONDS, SECONDS, CROWDING)


@given(CALM, SECONDS, CROWDING)
def test_a_machine_that_is_no_busier_than_undisturbed_has_no_more_time(
    calm: Calm, promised_s: float, crowding: float
) -> None:
    least_s = promised_s + calm.start_s
    assert rest_limit_s(calm, promised_s, crowding) >= least_s
    if crowding <= max(1.0, calm.crowding):
        assert rest_limit_s(calm, promised_s, crowding) == least_s
        assert (
            silence_limit_s(calm, promised_s, crowding) == FOUND_WITHIN_S + promised_s + 10 * calm.silence_s
        )


def test_twice_as_busy_takes_twice_as_long_but_for_what_is_promised() -> None:
    calm = Calm(start_s=10.0, silence_s=0.2, crowding=3.0)
    assert rest_limit_s(calm, 20.0, 6.0) == 40.0
    assert silence_limit_s(calm, 5.0, 6.0) == 19.0
