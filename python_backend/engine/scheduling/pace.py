"""Limits that follow what steps take: from the first burst on, under noise, and beside tenants that flood.

Where nothing is known, batches and prompts grow by trial. How much of an objective steps are planned for
follows how many of them keep it. And while a tenant has less than its part, steps are so short that its
answers take no more than a few times as long as they would alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from .budget import SHARE, StepLimits, batch_within, most_running, step_limits

if TYPE_CHECKING:
    from python_backend.costs.step_cost import StepCost

_FIRST_BATCH, _FIRST_TOKENS = 4, 64
# A trial is made where the last one took no more of the objective than this, or than usual where the cost of
# steps is known; the next is half as large again.
_EASY = 0.6
_GROWTH = 1.5
# More than may run are taken in meanwhile, for what is tried next: who reads of it does so once a second.
_TAKEN_IN_TIMES = 2
# Of the steps, so many keep the objective; each one moves the share by up to this much.
_KEPT = 0.95
_MOVE = 0.02
_LEAST_SHARE = 0.5
# How many times as long as alone the answers of a light tenant may take, and how long it is remembered. Its
# steps are to take fewer times as long: prompts of others are computed beside it, too. Half of a step may be
# fixed cost for this: others lose by it, and they have more than their part.
STRETCH = 3.0
STEP_STRETCH = 2.5
LIGHT_LEAST_TIMES_BASE = 1.0
REMEMBERED_S = 5.0


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What the next step is planned for: who waits for the next token, and what the tightest tier asks.

    `light` is how many sequences the tenant has that holds least, where that is less than its part; else 0.
    `tenants` is how many have any.
    """

    decoding: int
    kv_tokens: int
    target_ms: float | None
    light: int = 0
    tenants: int = 0


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`most_running` may stay, None for all; `batch` is what others may count on meanwhile."""

    steps: StepLimits
    most_running: int | None
    batch: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Sizes of a step that are known to be harmless, or the next ones to try."""

    batch: int = _FIRST_BATCH
    tokens: int = _FIRST_TOKENS
    is_growing: bool = True

    def after(self, sequences: int, tokens: int, took_ms: float, easy_ms: float) -> Trial:
        """What a step of so many sequences and tokens of prompts tells."""
        if took_ms <= easy_ms:
            batch = _grown(sequences) if sequences >= self.batch else self.batch
            return Trial(batch, _grown(tokens) if tokens >= self.tokens else self.tokens)
        fewer = (
            max(self.tokens // 2, _FIRST_TOKENS // 2) if tokens and _EASY * took_ms > easy_ms else self.tokens
        )
        return Trial(self.batch, fewer, self.is_growing and sequences < self.batch)


def _grown(size: int) -> int:
    return int(_GROWTH * size) + 1


class Pace:
    """Decides a step's limits, and is told what it took."""

    def __init__(self, most: StepLimits, is_tried: bool = False) -> None:
        self.most = most
        self._trial = Trial(most.max_batch_size, most.max_step_tokens) if is_tried else Trial()
        self._share = SHARE
        self._knows_cost = is_tried
        self._light_alone = 1.0
        self._light_until_s = 0.0

    def observe(
        self, sequences: int, prompt_tokens: int, took_ms: float, target_ms: float | None, steps: int = 1
    ) -> None:
        """So many steps alike were over, each after so long."""
        if not self.is_tried:
            easy_ms = inf if target_ms is None else (SHARE if self._knows_cost else _EASY) * target_ms
            self._trial = self._trial.after(sequences, prompt_tokens, took_ms, easy_ms)
        if target_ms is not None and sequences:
            move = -_KEPT if took_ms > target_ms else 1.0 - _KEPT
            self._share = min(max(self._share + steps * _MOVE * move, _LEAST_SHARE), SHARE)

    def forget_light(self) -> None:
        self._light_until_s = 0.0

    def limits(self, cost: StepCost | None, load: StepLoad, now_s: float) -> RunLimits:
        most, target_ms = self.most, load.target_ms
        if target_ms is None:
            return RunLimits(most, None, most.max_batch_size)
        self._knows_cost = cost is not None
        if cost is None:
            return self._of_trial(most, load.decoding, None)
        sizes = load.decoding, load.kv_tokens
        found = step_limits(most, cost, target_ms, *sizes, share=self._share)
        kept = most_running(most, cost, target_ms, *sizes, share=self._share)
        light = self._beside_light(cost, load, now_s)
        if light is not None:
            found = replace(found, max_batch_size=min(found.max_batch_size, light))
            kept = min(kept, light)
        if self.is_tried:
            return RunLimits(found, kept, found.max_batch_size)
        return self._of_trial(found, load.decoding, kept)

    @property
    def is_tried(self) -> bool:
        """Whether the largest batch is known to be harmless, so that nothing is left to try."""
        return self._trial.batch >= self.most.max_batch_size

    def _of_trial(self, found: StepLimits, decoding: int, kept: int | None) -> RunLimits:
        batch = min(found.max_batch_size, self._trial.batch)
        tokens = found.max_step_tokens
        if decoding:
            tokens = max(batch, min(tokens, decoding + self._trial.tokens))
        times = _TAKEN_IN_TIMES if self._trial.is_growing else 1
        announced = min(found.max_batch_size, times * batch)
        return RunLimits(StepLimits(batch, tokens), kept, announced)

    def _beside_light(self, cost: StepCost, load: StepLoad, now_s: float) -> int | None:
        """How many may run beside a light tenant; None where there is none.

        What is remembered is how much it has, not how long that takes: what is known of costs moves.
        """
        if load.light:  # it has so many times more under way than it would alone
            self._light_alone = max(1.0, load.light / STRETCH)
            self._light_until_s = now_s + REMEMBERED_S
        if now_s >= self._light_until_s:
            return None
        mean_tokens = load.kv_tokens / load.decoding if load.decoding else 0.0
        each_ms = cost.decode_sequence_ms + cost.kv_kilotoken_ms * mean_tokens / 1000
        light_ms = STEP_STRETCH * (cost.base_ms + self._light_alone * each_ms)
        # Each has one at least, or their answers would wait for one another.
        least = min(load.tenants, self.most.max_batch_size)
        fitting = batch_within(self.most, cost, light_ms, mean_tokens, LIGHT_LEAST_TIMES_BASE)
        return max(fitting, least)
