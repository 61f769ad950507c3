"""Steps as an engine under load has them, and what they took."""

from __future__ import annotations

import random
from dataclasses import dataclass

from python_backend.costs.step_cost import StepCost, StepShape


@dataclass
class _Answer:
    prompt_tokens: int
    answer_tokens: int
    computed_tokens: int = 0


def some_steps(chance: random.Random, count: int, max_step_tokens: int = 512) -> list[StepShape]:
    """Answers come and go; each step gives the rest of its budget to prompts."""
    answers: list[_Answer] = []
    steps: list[StepShape] = []
    while len(steps) < count:
        if chance.random() < 0.08 or not answers:
            answers.append(_Answer(chance.randint(20, 1500), chance.randint(10, 300)))
        kv_tokens = decode = prefill = 0
        for answer in answers:
            kv_tokens += answer.computed_tokens
            if answer.computed_tokens < answer.prompt_tokens:
                part = min(max_step_tokens - prefill, answer.prompt_tokens - answer.computed_tokens)
                answer.computed_tokens += part
                prefill += part
            else:
                answer.computed_tokens += 1
                decode += 1
        answers = [a for a in answers if a.computed_tokens < a.prompt_tokens + a.answer_tokens]
        steps.append(StepShape(prefill, decode, kv_tokens))
    return steps


def took_ms(chance: random.Random, cost: StepCost, shape: StepShape) -> float:
    """5 % noise, and every 50th step something else holds it up tenfold."""
    ms = cost.step_ms(shape) * max(0.5, chance.gauss(1.0, 0.05))
    return 10 * ms if chance.random() < 0.02 else ms


def mean_error(learned: StepCost, truth: StepCost, shapes: list[StepShape]) -> float:
    errors = [abs(learned.step_ms(shape) - truth.step_ms(shape)) / truth.step_ms(shape) for shape in shapes]
    return sum(errors) / len(errors)


def slower(cost: StepCost, times: float) -> StepCost:
    return StepCost(
        times * cost.base_ms,
        times * cost.prefill_token_ms,
        times * cost.decode_sequence_ms,
        times * cost.kv_kilotoken_ms,
    )
