"""Locust's shape: whichever curve `--shape` names, over `--users` and `--run-time`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from locust import LoadTestShape

from loadtest.shapes.curves import STEADY, TRACE, Curve, ShapeOptions, curve, spawn_rate, users_at
from loadtest.traces import read_trace

_DURATION_S = 600.0  # of shapes that need one, where none is given


class ChosenShape(LoadTestShape):
    """One class for all shapes, so that one locustfile, and one page, serves them all."""

    use_common_options = True
    _curve: Curve | None = None
    _users = 0
    _rate = 1.0

    def reset_time(self) -> None:
        super().reset_time()  # type: ignore[no-untyped-call]  # Locust's own is without types
        self._curve, self._users = None, 0

    def tick(self) -> tuple[int, float] | None:
        """Once a second; None ends the run."""
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        at_s = float(self.get_run_time())  # type: ignore[no-untyped-call]  # Locust's own is without types
        if options.run_time and at_s >= options.run_time:
            return None
        if not options.run_time and options.shape != STEADY and at_s >= _DURATION_S:
            return None
        if self._curve is None:
            self._curve = chosen_curve(options)
        wanted = users_at(self._curve(at_s), options.num_users or 1)
        if wanted != self._users:  # the same pair as before is no news to Locust
            soonest = spawn_rate(self._users, wanted)
            # Who only wants them to be there may bring them slowly; a spike that is brought slowly is none.
            self._rate = float(options.spawn_rate or soonest) if options.shape == STEADY else soonest
            self._users = wanted
        return self._users, self._rate


def chosen_curve(options: Any) -> Curve:
    """Raises ValueError with a sentence for the user."""
    shape = ShapeOptions(float(options.run_time or _DURATION_S), options.low, options.spikes, options.days)
    arrivals_s: tuple[float, ...] = ()
    if options.shape == TRACE and options.trace:
        arrivals_s = tuple(each.at_s for each in read_trace(Path(options.trace)).requests)
    return curve(options.shape, shape, arrivals_s)
