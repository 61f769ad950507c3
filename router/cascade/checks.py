"""Whether a small model's answer will do, by what the checks of its cascade say: the cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from python_backend.wire.errors import ErrorKind

# What is wrong with the caller, or with the text whoever reads it, is so for the large model too.
_FINAL = frozenset(
    {
        ErrorKind.INVALID_KEY,
        ErrorKind.FORBIDDEN,
        ErrorKind.CONTENT_FILTER,
        ErrorKind.RATE_LIMITED,
        ErrorKind.QUOTA,
        ErrorKind.CANCELLED,
    }
)


class Step(Enum):
    """What to do with an answer that is held."""

    TELL = "tell"
    JUDGE = "judge"
    ASK_LARGE = "ask_large"


class Reason(str, Enum):
    """Why the large model was asked; how it is called in metrics and to clients."""

    LOG_PROB = "log_prob"
    SCHEMA = "schema"
    JUDGE = "judge"
    FAILED = "failed"  # the small model gave no answer
    UNHELD = "unheld"  # what is made in the background, or was begun before, cannot be held


@dataclass(frozen=True, slots=True)
class Checks:
    """An answer has to pass all that are there."""

    least_log_prob: float | None = None  # natural, the mean of an answer's tokens
    has_schema: bool = False
    has_judge: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of an answer; None is what is not. What is not known of a check has not passed it.

    Of several choices the log probability is that of the least certain one.
    """

    log_prob: float | None = None
    fits_schema: bool | None = None
    judge_agrees: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` where the large model is to be asked, and nowhere else."""

    step: Step
    reason: Reason | None = None


def next_step(checks: Checks, found: Findings) -> Decision:
    """A judge is another call of a model: asked last, and only of an answer that passed all else."""
    least = checks.least_log_prob
    if least is not None and (found.log_prob is None or found.log_prob < least):
        return Decision(Step.ASK_LARGE, Reason.LOG_PROB)
    if checks.has_schema and not found.fits_schema:
        return Decision(Step.ASK_LARGE, Reason.SCHEMA)
    if not checks.has_judge or found.judge_agrees:
        return Decision(Step.TELL)
    return Decision(Step.JUDGE) if found.judge_agrees is None else Decision(Step.ASK_LARGE, Reason.JUDGE)


def certainty(choices: Sequence[Sequence[float]]) -> float | None:
    """The mean log probability of the least certain choice; None where one has no tokens that tell it."""
    if not choices or not all(choices):
        return None
    return min(sum(each) / len(each) for each in choices)


def helps_to_ask_large(kind: ErrorKind) -> bool:
    """After such a failure of the small model."""
    return kind not in _FINAL
