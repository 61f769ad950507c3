"""Steps in flight: the next is launched before the last one's tokens are handled.

Blocks may change hands while a step that was launched earlier still writes into them. That does no harm,
because steps take effect one after the other. A step writes only at positions that were not computed when it
was planned, so into blocks of its sequence alone which nobody finds by their content. Once such a block is
free, the first to hold it again writes it in a later step before anyone reads it.

Where a token is chosen by rules that look at those before it, as a guide's, its step is launched all the same
and computes. Only the choice waits for the tokens of the step before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from python_backend.engine.report import EngineBroken
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.steps.faults import GuardedExecution, results_of
from python_backend.engine.steps.ports import ChunkResult, Executor, Launched

_log = logging.getLogger("inflight.engine")

Commit = Callable[[StepPlan, list[ChunkResult]], None]


class StepsInFlight:
    """Launches steps and has them committed in the same order, each when it is over."""

    def __init__(self, executor: Executor, tokens_per_block: int, commit: Commit) -> None:
        self._executor = executor
        self._tokens_per_block = tokens_per_block
        self._commit = commit
        self._steps: deque[tuple[StepPlan, Launched]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def undecided(self) -> tuple[StepPlan, Launched] | None:
        """The newest step where its tokens are not chosen yet: what those before it gave had to be known."""
        return self._steps[-1] if self._steps and not self._steps[-1][1].is_chosen else None

    @property
    def running(self) -> StepPlan | None:
        """What the device computes now; None where it has nothing to do."""
        return next((plan for plan, launched in self._steps if not launched.is_over), None)

    @property
    def has_guesses(self) -> bool:
        """Whether it is not known yet how many tokens the newest step gives."""
        return bool(self._steps) and self._steps[-1][0].drafts > 0

    @property
    def has_run_dry(self) -> bool:
        """Whether the device had nothing to do before the newest step came."""
        return all(launched.is_over for _, launched in list(self._steps)[:-1])

    def launch(self, plan: StepPlan) -> None:
        """A step that cannot be launched is run when nothing else is in flight, in parts if need be."""
        if not plan.chunks:
            return
        if self._executor.depth > 1:
            try:
                self._steps.append((plan, self._executor.launch(plan.chunks, plan.copies)))
                return
            except Exception:
                _log.exception("launching a step failed; retrying")
        self.collect(leave=0)
        self._run(plan)

    def decide(self) -> None:
        """Has the tokens of the newest step chosen, when it is the only one that is not collected."""
        plan, launched = self._steps[-1]
        try:
            launched.choose()
        except EngineBroken:
            raise
        except Exception:
            _log.exception("sampling failed; retrying its step")
            self._steps.pop()
            self._run(plan)

    def collect(self, leave: int) -> None:
        """Waits for the oldest steps, until no more than `leave` are in flight."""
        while len(self._steps) > leave:
            plan, launched = self._steps.popleft()
            self._commit(plan, results_of(launched, plan.chunks, self._executor.depth))

    def clear(self) -> None:
        self._steps.clear()

    def _run(self, plan: StepPlan) -> None:
        """Nothing else is in flight."""
        left = [chunk for chunk in plan.chunks if chunk.sequence.finish_reason is None and chunk.count]
        plan.chunks = left
        execution = GuardedExecution(self._executor, self._tokens_per_block)
        self._commit(plan, execution.run(left, plan.copies))
