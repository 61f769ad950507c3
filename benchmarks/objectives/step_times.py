"""What steps took during a run, by what the engines told of it themselves.

A processor that others use, too, is slower at one time than at another. So a run on it is foretold by its own
steps, by what they took at the time, and what is tried is what becomes of them: queues, batches, first
tokens, the time between tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.objectives.session import TEACHES, SentRun, Session, counted, overhead_s, summed
from benchmarks.objectives.step_fit import BUSY, STEPS, step_cost
from python_backend.costs.step_cost import StepCost
from python_backend.engine.report import SIZES
from simulator.slowness import AS_USUAL, Slowness
from simulator.uneven_cost import UnevenStepCost

_TOLD = "inflight_engine_step_cost_seconds"
_SIZED, _SIZED_S = "inflight_engine_steps_total", "inflight_engine_step_seconds_total"
_ENOUGH_STEPS = 8  # the mean of fewer says little
_SLOW_EVERY_S, _LEAST_S = 1.0, 0.15  # less work tells nothing of that time
_TOLD_NAMES = ("base", "prefill_token", "decode_sequence", "kv_kilotoken")


@dataclass(frozen=True)
class StepTimes:
    """What steps `taken` took, what engines and routers believed that they would, and what is around them.

    `slowness` is what is left when their sizes are known: at some times of the session they took longer.
    """

    taken: StepCost
    believed: StepCost | None
    around_s: float
    slowness: Slowness = AS_USUAL


def by_other_runs(session: Session, run: SentRun) -> StepTimes:
    """None is foretold by what it has itself told."""
    return StepTimes(step_cost(session, run.part), session.cost, overhead_s(session))


def by_the_run(session: Session, run: SentRun) -> StepTimes:
    """What steps of each size took, with what they usually read of the cache.

    Beyond those sizes, and where they were not counted, it is the coefficients that were told on average, all
    of them by as much more as steps took in all. What is around an engine takes longer while engines compute
    on the same processor, so that is of the lightest run that taught.
    """
    around_s = overhead_s(session, TEACHES)
    told = _told_cost(session, run)
    slower = 1000 * counted(session, run, BUSY) / _work_ms(run, told, counted(session, run, STEPS))
    line = StepCost(*(slower * each for each in asdict(told).values()))
    if not (points := list(_sized_ms(session, run))):
        return StepTimes(line, told, around_s)
    sizes, times_ms = zip(*points, strict=True)
    tokens_ms = np.interp(range(1, int(sizes[-1]) + 1), sizes, times_ms)
    each_ms = (line.base_ms, line.prefill_token_ms, line.decode_sequence_ms)
    taken = UnevenStepCost(*each_ms, 0.0, tuple(map(float, tokens_ms)))
    return StepTimes(taken, told, around_s, _slowness(session, run))


def _sized_ms(session: Session, run: SentRun) -> Iterator[tuple[float, float]]:
    """The middle of each size of which there were enough steps, and what these took on average."""
    for before, size in pairwise((0, *SIZES)):
        label = f'{{model="tensorrt_llm",tokens="{size}"'
        steps, took_s = (counted(session, run, family + label) for family in (_SIZED, _SIZED_S))
        if steps >= _ENOUGH_STEPS:
            yield (before + 1 + size) / 2, 1000 * took_s / steps


def _slowness(session: Session, run: SentRun) -> Slowness:
    """Second by second, beside what steps of the same sizes took in the whole run."""
    samples = session.samples_of(run)
    steps, took_s = (_by_size(samples, family) for family in (_SIZED, _SIZED_S))
    usual_s = (took_s[-1] - took_s[0]) / np.maximum(steps[-1] - steps[0], 1)
    at_s = np.array([sample["at_s"] for sample in samples])
    # The first sample that is a second later or more; of the last ones, the last.
    later = np.minimum(np.searchsorted(at_s, at_s[:-1] + _SLOW_EVERY_S), len(at_s) - 1)
    expected_s = (steps[later] - steps[:-1]) @ usual_s
    known = expected_s > _LEAST_S
    if not known.any():
        return AS_USUAL
    times = (took_s[later] - took_s[:-1]).sum(axis=1)[known] / expected_s[known]
    middles_s = (at_s[:-1] + at_s[later])[known] / 2
    wanted_s = np.arange(run.began_s + _SLOW_EVERY_S / 2, at_s[-1], _SLOW_EVERY_S)
    return Slowness(tuple(np.interp(wanted_s, middles_s, times).tolist()), _SLOW_EVERY_S, run.began_s)


def _by_size(samples: list[dict[str, float]], family: str) -> Any:
    """A row for each sample, a column for each size."""
    labels = [f'{family}{{model="tensorrt_llm",tokens="{size}"' for size in SIZES]
    return np.array([[summed(sample, label) for label in labels] for sample in samples])


def _told_cost(session: Session, run: SentRun) -> StepCost:
    samples = session.samples_of(run)
    told_s = [
        sum(summed(sample, family) for sample in samples)
        for family in (f'{_TOLD}{{coefficient="{each}"' for each in _TOLD_NAMES)
    ]
    if not any(told_s):
        raise ValueError(f"the engines reported no steps during {run.name}")
    return StepCost(*(1000 * each / len(samples) / session.servers for each in told_s))


def _work_ms(run: SentRun, cost: StepCost, steps: float) -> float:
    """What so many steps would take that give these answers."""
    done = [each for each in run.results if each.completion_tokens]
    prompts = sum(each.prompt_tokens - each.cached_tokens for each in done)
    decoded = sum(each.completion_tokens - 1 for each in done)
    # Each token but the first reads the prompt, and the tokens before it.
    read = sum(
        (each.completion_tokens - 1) * (each.prompt_tokens + each.completion_tokens / 2) for each in done
    )
    return (
        cost.base_ms * steps
        + cost.prefill_token_ms * prompts
        + cost.decode_sequence_ms * decoded
        + cost.kv_kilotoken_ms * read / 1000
    )
