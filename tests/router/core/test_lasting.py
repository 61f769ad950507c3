from __future__ import annotations

from router.core.lasting import lasting


def test_durations_are_shown_in_one_short_unit() -> None:
    assert [lasting(time_s) for time_s in (-1, 59.9, 600, 7200, 86_400 * 3)] == [
        "0 s",
        "59 s",
        "10 min",
        "2 h",
        "3 d",
    ]
