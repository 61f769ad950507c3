"""How long steps take, and what the engine learns from that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from python_backend.costs.learners import StepLearner
from python_backend.engine.report import SIZES

if TYPE_CHECKING:
    from python_backend.costs.step_cost import LearnedStepCost
    from python_backend.engine.scheduling.plan import StepPlan

# The first steps of an engine's life compile kernels and touch memory for the first time.
_FIRST_STEPS = 8
# Learning from a step takes longer than to measure it, and from every short one would tell no more. At first
# there is more to learn; and steps with prompts are rarer and differ more.
_LEARN_EVERY_NS = 25_000_000
_LEARN_MORE_EVERY_NS = 5_000_000
_ENOUGH_SAMPLES = 300
# Before others act on what is recalled: the machine may have been busy with other work when it was learned.
_CONFIRMING_STEPS = 256


class StepMeter:
    """Told when each step is over, in the order of their launches.

    Of two steps that overlap the later one begins, for the meter, when the earlier is over. A step's time is
    all that passes between its planning and its results, since that is what those wait who are in it; and
    where it follows another, all since that was over: they also wait while its tokens are sent and requests
    are taken in. What is `recalled` of a run before is believed until the steps of this one say otherwise.
    Nothing is learned from steps with guesses, whose rows take longer than those of prompts.
    """

    def __init__(self, recalled: LearnedStepCost | None = None) -> None:
        self.busy_ns = 0
        self.last_ns = 0  # of the last step, from its planning on
        self.last_whole_ns = 0  # and with what was done before, where it follows another
        self.sized_steps, self.sized_ns = [0] * len(SIZES), [0] * len(SIZES)
        self.learned = recalled
        self._learner = StepLearner(recalled)
        self._is_recalled = recalled is not None
        self._is_tried_alone = False
        self._steps = 0
        self.over_ns = 0  # when the last step was
        self._learned_ns = 0

    @contextmanager
    def trying_alone(self) -> Iterator[None]:
        """Steps of one sequence are learned from meanwhile, and nothing is believed for it yet."""
        self._is_tried_alone = True
        try:
            yield
        finally:
            self._is_tried_alone = False
            self._steps = self.busy_ns = 0
            self.sized_steps, self.sized_ns = [0] * len(SIZES), [0] * len(SIZES)

    @property
    def confirmed(self) -> LearnedStepCost | None:
        """What others may refuse requests by: not what only a run before says."""
        return None if self._is_recalled and self._steps < _CONFIRMING_STEPS else self.learned

    def over(self, plan: StepPlan, now_ns: int) -> int:
        """Returns when the step began, as above."""
        began_ns = max(plan.begun_ns, self.over_ns)
        self.last_ns = now_ns - began_ns
        self.last_whole_ns = took_ns = now_ns - (self.over_ns if plan.follows else began_ns)
        self.busy_ns += took_ns
        self.over_ns = now_ns
        self._steps += 1
        if 0 < plan.tokens <= SIZES[-1]:
            size = bisect_left(SIZES, plan.tokens)
            self.sized_steps[size] += 1
            self.sized_ns[size] += took_ns
        tells = plan.chunks and not plan.drafts
        if tells and self._steps > _FIRST_STEPS and now_ns - self._learned_ns >= self._pause_ns(plan):
            self._learned_ns = now_ns
            if not self._is_tried_alone:
                self._learner.observe(plan.shape, took_ns / 1e6)
                self.learned = self._learner.learned
            elif plan.tokens == 1:
                self._learner.begin_with(plan.shape, took_ns / 1e6)
        return began_ns

    def _pause_ns(self, plan: StepPlan) -> int:
        has_prompts = plan.tokens > len(plan.chunks)
        if has_prompts or self.learned is None or self.learned.samples < _ENOUGH_SAMPLES:
            return _LEARN_MORE_EVERY_NS
        return _LEARN_EVERY_NS
