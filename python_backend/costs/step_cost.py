"""The time of one engine step as a sum: what it always takes, and what each token of it adds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step computes, or several on average.

    Tokens of prompts, sequences that get their next token, and what they read.

    `kv_tokens` is the sum over all its sequences of the tokens that are cached before the step.
    """

    prefill_tokens: float
    decode_sequences: float
    kv_tokens: float


def weight_of(start: float, count: float, even_context: float | None) -> float:
    """As how many of a prompt's first tokens those take that come behind `start` others.

    Behind `even_context` one takes twice as long, for it looks back at all of them; None: it does not.
    """
    return count if even_context is None else count * (1.0 + (start + count / 2) / even_context)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds; none of them is negative. One compute unit is one millisecond of engine time."""

    base_ms: float
    prefill_token_ms: float
    decode_sequence_ms: float
    kv_kilotoken_ms: float = 0.0

    def step_ms(self, shape: StepShape) -> float:
        return (
            self.base_ms
            + self.prefill_token_ms * shape.prefill_tokens
            + self.decode_sequence_ms * shape.decode_sequences
            + self.kv_kilotoken_ms * shape.kv_tokens / 1000
        )


@dataclass(frozen=True, slots=True)
class LearnedStepCost:
    """What was learned from so many steps; `error` is the mean relative error of recent predictions.

    Frozen: its predictions went wrong, and `cost` is the last that was good.
    """

    cost: StepCost
    samples: int
    error: float
    is_frozen: bool = False
