"""What steps take, by the engine's own counters during a session: four seconds at a time.

An engine learns its cost as it goes, robustly and for now; of the same steps a fit of all of them knows more.
When a prompt was computed is known by its first token alone. In windows not much longer than that takes, part
of it belongs to the one before, and what a token of a prompt costs would seem less than it is.
"""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise

from benchmarks.objectives.session import GENERATED, Part, Session, summed
from python_backend.costs.step_cost import StepCost, weight_of
from simulator.planning.fitting import fitted_cost

STEPS = 'nv_trt_llm_general_metrics{general_type="iteration_counter"'
_BLOCKS = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"'
BUSY = "inflight_engine_busy_seconds_total"
# Of samples half a second apart; they overlap.
_WINDOW_SAMPLES = 8
# Windows with fewer steps say little, and so do a few windows.
_FEWEST_STEPS, _FEWEST_WINDOWS = 6 * _WINDOW_SAMPLES, 30


def step_cost(session: Session, part: Part) -> StepCost:
    """For a forecast of this part, by all others: none is foretold by what it has itself told.

    What the engine had learned while it was taught, where its metrics were not kept.
    """
    rows, times_ms = [], []
    for first in range(len(session.samples) - _WINDOW_SAMPLES):
        window = session.samples[first : first + _WINDOW_SAMPLES + 1]
        before, after = window[0], window[-1]
        steps = summed(after, STEPS) - summed(before, STEPS)
        parts = {_part(session, each["at_s"]) for each in window}
        if steps < _FEWEST_STEPS or len(parts) > 1 or parts & {None, part}:
            continue
        read = sum(_read_tokens(session, *each) for each in pairwise(window))
        prompts = _prompt_tokens(session, before["at_s"], after["at_s"])
        generated = summed(after, GENERATED) - summed(before, GENERATED)
        rows.append((steps, prompts, generated, read / 1000))
        times_ms.append(1000 * (summed(after, BUSY) - summed(before, BUSY)))
    if len(rows) >= _FEWEST_WINDOWS:
        return fitted_cost(rows, times_ms)[0]
    if session.cost is None:
        raise ValueError("the session has no learned step cost")
    return session.cost


def _read_tokens(session: Session, before: dict[str, float], after: dict[str, float]) -> float:
    """A step of each server reads what that server holds."""
    steps = summed(after, STEPS) - summed(before, STEPS)
    blocks = (summed(before, _BLOCKS) + summed(after, _BLOCKS)) / 2 / session.servers
    return session.engine.block_tokens * blocks * steps


def _part(session: Session, at_s: float) -> Part | None:
    """Of the run that was sent last; what it asked for is computed by the time that the next one begins."""
    place = bisect([run.began_s for run in session.runs], at_s)
    return session.runs[place - 1].part if place else None


def _prompt_tokens(session: Session, from_s: float, until_s: float) -> float:
    """Those of answers that began meanwhile, by what they weigh."""
    return sum(
        weight_of(0, each.prompt_tokens, session.engine.even_context)
        for run in session.runs
        for each in run.results
        if each.first_token_s is not None and from_s < run.began_s + each.at_s + each.first_token_s <= until_s
    )
