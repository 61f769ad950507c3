"""When the next step is launched: as late as the device never waits for it, so that newcomers are in it.

A step that is launched as soon as the last one begins leaves whoever comes a moment later to the one after
it: a whole step more to the first token. So the launch waits for the end of the step that runs, less a
margin. A launch that came too late widens the margin by much, every other one narrows it by little: about
one launch in a hundred is late, by a fraction of a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.costs.step_cost import LearnedStepCost, StepShape

_FIRST_MARGIN_NS = 1_500_000
_LEAST_MARGIN_NS = 500_000
_MOST_MARGIN_NS = 5_000_000
_WIDER_NS = 300_000
_NARROWER_NS = 3_000
# Predictions that are off by more on average are not waited by.
_MOST_ERROR = 0.2
# Steps differ from their predictions by more than the mean error.
_ERRORS_TO_SPARE = 2.0


class LaunchTime:
    """Decides how long a launch may wait, and is told whether the last one came too late."""

    def __init__(self) -> None:
        self.margin_ns = _FIRST_MARGIN_NS

    def spare_ns(
        self, learned: LearnedStepCost | None, running: StepShape, began_ns: int, now_ns: int
    ) -> int:
        """What is left until the next launch, while a step of this shape runs since `began_ns`."""
        if learned is None or learned.is_frozen or learned.error > _MOST_ERROR:
            return 0
        sure = 1.0 - _ERRORS_TO_SPARE * learned.error
        takes_ns = int(1e6 * sure * learned.cost.step_ms(running))
        return max(0, began_ns + takes_ns - self.margin_ns - now_ns)

    def launched(self, is_late: bool) -> None:
        """A launch that had waited is done; late is one that the device was waiting for."""
        wider_ns = self.margin_ns + (_WIDER_NS if is_late else -_NARROWER_NS)
        self.margin_ns = min(max(wider_ns, _LEAST_MARGIN_NS), _MOST_MARGIN_NS)
