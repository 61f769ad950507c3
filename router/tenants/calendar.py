"""Days and months of bills, in UTC."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

END_OF_TIME_S = 253_402_300_800.0  # the year 10000: what is later cannot be shown as a date


def check_day(what: str, day: str) -> None:
    try:
        is_day = day == datetime.strptime(day, "%Y-%m-%d").strftime("%Y-%m-%d")
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError(f"{what}: expected a day as YYYY-MM-DD, got {day[:20]!r}")


def day_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d")


def month_of(at_s: float) -> str:
    return day_of(at_s)[:7]


def month_end_s(at_s: float) -> float:
    """When the month that holds this moment is over."""
    first = datetime.fromtimestamp(at_s, timezone.utc).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return (first + timedelta(days=32)).replace(day=1).timestamp()


class CurrentMonth:
    """The name of the current month, worked out again only when another one begins."""

    def __init__(self) -> None:
        self.name = ""
        self.begins_s = self.ends_s = 0.0

    def at(self, now_s: float) -> str:
        if not self.begins_s <= now_s < self.ends_s:
            self.name = month_of(now_s)
            self.begins_s, self.ends_s = now_s, month_end_s(now_s)
        return self.name
