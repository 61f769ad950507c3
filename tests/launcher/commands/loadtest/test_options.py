from __future__ import annotations

import pytest

from launcher.commands.loadtest.options import objectives
from launcher.commands.option_values import Mistake, duration_s
from loadtest.results import Slo
from loadtest.tenants import TIERS


def test_durations_have_units() -> None:
    assert [duration_s("--x", text) for text in ("30s", "1.5m", "1h", "60ms")] == [30, 90, 3600, 0.06]


@pytest.mark.parametrize("text", ["30", "", "s", "-1s", "0s", "1e9h", "2 weeks"])
def test_an_invalid_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(Mistake, match="--duration"):
        duration_s("--duration", text)


def test_objectives_are_for_all_tiers_or_for_one() -> None:
    assert objectives(["ttft:1s,itl:60ms"]) == dict.fromkeys(TIERS, Slo(1.0, 0.06))
    assert objectives(["interactive=ttft:1s", "batch=e2e:20s"]) == {
        "interactive": Slo(1.0),
        "batch": Slo(ended_s=20.0),
    }
    assert objectives([]) == {}


def test_metrics_have_long_names_and_later_options_override() -> None:
    assert objectives(["first-token=1s,between-tokens=60ms", "batch=first-token:9s"]) == {
        "interactive": Slo(1.0, 0.06),
        "standard": Slo(1.0, 0.06),
        "batch": Slo(9.0),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tft:1s", "allowed: ttft"),
        ("gold=ttft:1s", "no tier 'gold'; allowed: interactive"),
        ("first-token", "not a duration"),
        ("ttft:fast", "not a duration"),
        ("interactive=", "expected TIER=ttft"),
        ("", "expected TIER=ttft"),
    ],
)
def test_an_unreadable_objective_is_refused_with_the_allowed_form(text: str, problem: str) -> None:
    with pytest.raises(Mistake, match=problem):
        objectives([text])
