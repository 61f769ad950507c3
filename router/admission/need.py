"""What a request can use at most, as far as can be known before it is sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """`sequences` is how many places in a batch it takes: answers, or rows of a model of fixed cost.

    `rows` are all of a model of fixed cost, where they are more than are under way at once.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    sequences: int = 1
    rows: int = 0
