"""What steps take, by the engine's own counters during a session: half a second at a time.

An engine learns its cost as it goes, robustly and for now; of the same steps a fit of all of them knows more.
"""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise

from benchmarks.objectives.session import GENERATED, Part, Session, summed
from python_backend.costs.step_cost import StepCost
from simulator.planning.fitting import fitted_cost

STEPS = 'nv_trt_llm_general_metrics{general_type="iteration_counter"'
_BLOCKS = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"'
BUSY = "inflight_engine_busy_seconds_total"
# Windows with fewer steps say little, and so do a few windows.
_FEWEST_STEPS, _FEWEST_WINDOWS = 6, 30


def step_cost(session: Session, part: Part) -> StepCost:
    """For a forecast of this part, by all others: none is foretold by what it has itself told.

    What the engine had learned while it was taught, where its metrics were not kept.
    """
    rows, times_ms = [], []
    for before, after in pairwise(session.samples):
        steps = summed(after, STEPS) - summed(before, STEPS)
        if steps < _FEWEST_STEPS or _part(session, before["at_s"]) in (None, part):
            continue
        blocks = (
            (summed(before, _BLOCKS) + summed(after, _BLOCKS)) / 2 / session.servers
        )  # a step reads its own
        held = session.engine.block_tokens * blocks
        prompts = _prompt_tokens(session, before["at_s"], after["at_s"])
        generated = summed(after, GENERATED) - summed(before, GENERATED)
        rows.append((steps, prompts, generated, held * steps / 1000))
        times_ms.append(1000 * (summed(after, BUSY) - summed(before, BUSY)))
    if len(rows) >= _FEWEST_WINDOWS:
        return fitted_cost(rows, times_ms)[0]
    if session.cost is None:
        raise ValueError("the session has not learned what steps cost")
    return session.cost


def _part(session: Session, at_s: float) -> Part | None:
    """Of the run that was sent last; what it asked for is computed by the time that the next one begins."""
    place = bisect([run.began_s for run in session.runs], at_s)
    return session.runs[place - 1].part if place else None


def _prompt_tokens(session: Session, from_s: float, until_s: float) -> int:
    """Those of answers that began meanwhile."""
    return sum(
        each.prompt_tokens
        for run in session.runs
        for each in run.results
        if each.first_token_s is not None and from_s < run.began_s + each.at_s + each.first_token_s <= until_s
    )
