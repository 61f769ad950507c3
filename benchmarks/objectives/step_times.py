"""What steps took during a run, by what the engines told of it themselves.

A processor that others use, too, is slower at one time than at another. So a run on it is foretold by its own
steps, and what is tried is what becomes of them: queues, batches, first tokens, the time between tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.objectives.session import SentRun, Session, counted, summed
from benchmarks.objectives.step_fit import BUSY, STEPS, step_cost
from python_backend.costs.step_cost import StepCost

_TOLD = "inflight_engine_step_cost_seconds"
_TOLD_NAMES = ("base", "prefill_token", "decode_sequence", "kv_kilotoken")


@dataclass(frozen=True)
class StepTimes:
    """What steps `taken` took, and what engines and routers believed that they would."""

    taken: StepCost
    believed: StepCost | None


def by_other_runs(session: Session, run: SentRun) -> StepTimes:
    """None is foretold by what it has itself told."""
    return StepTimes(step_cost(session, run.part), session.cost)


def by_the_run(session: Session, run: SentRun) -> StepTimes:
    """The coefficients that were told on average, all of them by as much more as steps took in all."""
    told = _told_cost(session, run)
    slower = 1000 * counted(session, run, BUSY) / _work_ms(run, told, counted(session, run, STEPS))
    return StepTimes(StepCost(*(slower * each for each in asdict(told).values())), told)


def _told_cost(session: Session, run: SentRun) -> StepCost:
    samples = session.samples_of(run)
    told_s = [
        sum(summed(sample, family) for sample in samples)
        for family in (f'{_TOLD}{{coefficient="{each}"' for each in _TOLD_NAMES)
    ]
    if not any(told_s):
        raise ValueError(f"the engines told nothing of their steps during {run.name}")
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
