"""What steps may hold: the limits that were set, or less where latency targets ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from python_backend.engine.scheduling.budget import StepLimits
from python_backend.engine.scheduling.pace import Pace, StepLoad
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from python_backend.costs.step_cost import LearnedStepCost
    from python_backend.engine.scheduling.plan import StepPlan
    from python_backend.engine.scheduling.scheduler import Scheduler


class StepControl:
    """Sets the scheduler's limits; `most` are those that the engine was started with."""

    def __init__(self, scheduler: Scheduler, most: StepLimits, is_tried: bool = False) -> None:
        self._scheduler = scheduler
        self._most = most
        self._pace = Pace(most, is_tried)
        self.batch_size = most.max_batch_size  # that others may count on
        self._light, self._light_at = 0, -1
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
                text = f"{name} is {wanted}; allowed: up to {most}, the value the engine was started with"
                raise InflightError(ErrorKind.INVALID_REQUEST, text)
        targets_ms = self._inter_token_ms if inter_token_ms is None else _targets_ms(inter_token_ms)
        limits = StepLimits(
            self._pace.most.max_batch_size if max_batch_size is None else max_batch_size,
            self._pace.most.max_step_tokens if max_step_tokens is None else max_step_tokens,
        )
        try:
            self._scheduler.configure(limits.max_batch_size, limits.max_step_tokens)
        except ValueError as error:
            raise InflightError(ErrorKind.INVALID_REQUEST, str(error)) from None
        self._pace.most, self._inter_token_ms = limits, targets_ms
        self.batch_size = limits.max_batch_size

    def follow(self, learned: LearnedStepCost | None, latest: StepPlan, now_s: float) -> None:
        """To be called before each step: the sequences of the latest one wait for their next token."""
        if not self._inter_token_ms:
            return
        if not self._scheduler.running and not self._scheduler.waiting:
            self._pace.forget_light()
        lengths = [chunk.start + chunk.count for chunk in latest.chunks if chunk.yields_token]
        tenants = self._scheduler.batch.places.tenants
        load = StepLoad(len(lengths), sum(lengths), self._target_ms, self._light_sequences, tenants)
        limits = self._pace.limits(None if learned is None else learned.cost, load, now_s)
        self.batch_size = limits.batch
        self._scheduler.configure(
            limits.steps.max_batch_size, limits.steps.max_step_tokens, limits.most_running
        )

    def observe(self, plan: StepPlan, took_ms: float) -> None:
        """A step is over."""
        sequences = len(plan.chunks)
        if self._inter_token_ms or not self._pace.is_tried:
            self._pace.observe(sequences, plan.tokens - sequences, took_ms, self._target_ms)

    @property
    def _target_ms(self) -> float | None:
        """The tightest of the tiers that are present, or of all while nobody is here."""
        here = [ms for tier, ms in self._inter_token_ms.items() if self._scheduler.batch.has_tier(tier)]
        if not here and not self._scheduler.running and not self._scheduler.waiting:
            here = list(self._inter_token_ms.values())
        return min(here, default=None)

    @property
    def _light_sequences(self) -> int:
        places = self._scheduler.batch.places
        if places.changes != self._light_at:
            lightest = places.lightest()
            self._light = 0 if lightest is None else places.held(lightest)
            self._light_at = places.changes
        return self._light


def _targets_ms(inter_token_ms: Mapping[Tier, float | None]) -> dict[Tier, float]:
    for tier, ms in inter_token_ms.items():
        if ms is not None and not (isfinite(ms) and ms > 0):
            text = f"inter_token_ms of {Tier(tier).label} is {ms}; allowed: a positive number, or none"
            raise InflightError(ErrorKind.INVALID_REQUEST, text)
    return {Tier(tier): float(ms) for tier, ms in inter_token_ms.items() if ms is not None}
