from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.commands.option_values import duration_text, tier_choice
from launcher.commands.output import time_text
from launcher.commands.slo.commands import objective_s
from python_backend.wire.tiers import Tier


@pytest.mark.parametrize(
    ("text", "time_s"),
    [("500ms", 0.5), ("1.5 s", 1.5), ("2m", 120.0), ("1ms", 0.001), ("60m", 3600.0), ("none", None)],
)
def test_durations_are_read_with_their_units(text: str, time_s: float | None) -> None:
    assert objective_s("--first-token", text) == pytest.approx(time_s)


@pytest.mark.parametrize(
    "text", ["", "500", "ms", "1h", "-1s", "1  s", "1e3ms", "٣s", "nan", "infs", "1.5.0s"]
)
def test_an_unreadable_duration_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"--first-token: .* such as 500ms, 1\.5s or 2m; or none"):
        objective_s("--first-token", text)


@pytest.mark.parametrize("text", ["0ms", "0.5ms", "61m", "999999999m"])
def test_a_duration_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(ValueError, match=f"--inter-token: {text} is out of range; allowed: 1ms to 60m"):
        objective_s("--inter-token", text)


def test_tiers_are_named_one_by_one_or_all() -> None:
    assert tier_choice("interactive") == (Tier.INTERACTIVE,)
    assert tier_choice("all") == tuple(Tier)
    with pytest.raises(ValueError, match="no tier 'fast'; allowed: interactive, standard, batch, all"):
        tier_choice("fast")


@settings(deadline=None)
@given(st.integers(1, 3_600_000))
def test_a_written_duration_is_read_back_the_same(time_ms: int) -> None:
    assert objective_s("--first-token", duration_text(time_ms / 1000)) == pytest.approx(
        time_ms / 1000, rel=1e-5
    )


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (None, ""),
        (0.0123456, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.2345, "1.23 s"),
        (59.96, "60 s"),
        (1800.0, "30 min"),
    ],
)
def test_times_are_shown_in_the_unit_that_suits_them(time_s: float | None, text: str) -> None:
    assert time_text(time_s) == text
