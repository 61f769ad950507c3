"""How long a rollout is going to take, at the rate of requests that there was lately."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.control.objectives.monitor import WINDOW_S
from router.control.objectives.records import read_measured
from router.control.releases.forecast import expected_s
from router.core.lasting import lasting
from router.core.objective import Metric

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from router.control.releases.plan import Plan

_ONE_EACH = (Metric.FIRST_TOKEN, Metric.END_TO_END)  # each request has one of them


@dataclass(frozen=True)
class Expectation:
    """Of a rollout whose canary is as good as the stable release."""

    per_s: float
    whole_s: float

    @property
    def sentence(self) -> str:
        if math.isinf(self.whole_s):
            return "The model had no requests in the last minutes: the rollout waits for some."
        return (
            f"At {self.per_s:.2g} requests per second, as in the last minutes, it takes about "
            f"{lasting(self.whole_s)} if nothing is wrong with the canary."
        )


def expectation(connection: Connection, model: str, plan: Plan, now_s: float) -> Expectation:
    answered = sum(
        sum(figures.counts.get(metric, {}).values())
        for figures in read_measured(connection, now_s, model).values()
        for metric in _ONE_EACH
    )
    per_s = answered / WINDOW_S
    return Expectation(per_s, expected_s(plan, per_s))
