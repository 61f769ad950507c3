"""What steps may hold: the limits that were set, or less where latency targets ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from python_backend.engine.scheduling.budget import StepLimits, step_limits
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from python_backend.costs.step_cost import LearnedStepCost
    from python_backend.engine.scheduling.plan import StepPlan
    from python_backend.engine.scheduling.scheduler import Scheduler


class StepControl:
    """Sets the scheduler's limits; `most` are those that the engine was started with."""

    def __init__(self, scheduler: Scheduler, most: StepLimits) -> None:
        self._scheduler = scheduler
        self._most = most
        self._limits = most
        self._inter_token_ms: dict[Tier, float] = {}

    def configure(
        self,
        max_step_tokens: int | None,
        max_batch_size: int | None,
        inter_token_ms: Mapping[Tier, float | None] | None,
    ) -> None:
        """None leaves one as it is; raises InflightError for nonsense, and for more than `most`."""
        for name, wanted, most in (
            ("max_batch_size", max_batch_size, self._most.max_batch_size),
            ("max_step_tokens", max_step_tokens, self._most.max_step_tokens),
        ):
            if wanted is not None and wanted > most:
                text = f"{name} is {wanted}; allowed: up to {most}, which the engine was started with"
                raise InflightError(ErrorKind.INVALID_REQUEST, text)
        targets_ms = self._inter_token_ms if inter_token_ms is None else _targets_ms(inter_token_ms)
        limits = StepLimits(
            self._limits.max_batch_size if max_batch_size is None else max_batch_size,
            self._limits.max_step_tokens if max_step_tokens is None else max_step_tokens,
        )
        try:
            self._scheduler.configure(limits.max_batch_size, limits.max_step_tokens)
        except ValueError as error:
            raise InflightError(ErrorKind.INVALID_REQUEST, str(error)) from None
        self._limits, self._inter_token_ms = limits, targets_ms

    def follow(self, learned: LearnedStepCost | None, latest: StepPlan) -> None:
        """To be called before each step: the sequences of the latest one wait for their next token."""
        if learned is None or not self._inter_token_ms:
            return
        targets_ms = [ms for tier, ms in self._inter_token_ms.items() if self._scheduler.has_tier(tier)]
        lengths = [chunk.start + chunk.count for chunk in latest.chunks if chunk.yields_token]
        tightest_ms = min(targets_ms, default=None)
        limits = step_limits(self._limits, learned.cost, tightest_ms, len(lengths), sum(lengths))
        self._scheduler.configure(limits.max_batch_size, limits.max_step_tokens)


def _targets_ms(inter_token_ms: Mapping[Tier, float | None]) -> dict[Tier, float]:
    for tier, ms in inter_token_ms.items():
        if ms is not None and not (isfinite(ms) and ms > 0):
            text = f"inter_token_ms of {Tier(tier).label} is {ms}; allowed: a positive number, or none"
            raise InflightError(ErrorKind.INVALID_REQUEST, text)
    return {Tier(tier): float(ms) for tier, ms in inter_token_ms.items() if ms is not None}
