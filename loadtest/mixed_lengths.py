"""Short and long answers mixed: the load on which the kind of batching decides."""

from __future__ import annotations

import random

from loadtest.replay.plan import PlannedRequest

SHORT, LONG = "short", "long"
_PROMPTS = (
    "The lighthouse keeper wrote in his book that",
    "Once upon a time in a small town,",
    "The most important thing about tea is",
    "In the year 1914 the harbour",
)


def _request(at_s: float, is_long: bool, short_tokens: int, long_tokens: int, index: int) -> PlannedRequest:
    return PlannedRequest(
        at_s=at_s,
        prompt=_PROMPTS[index % len(_PROMPTS)],
        max_tokens=long_tokens if is_long else short_tokens,
        kind=LONG if is_long else SHORT,
    )


def all_at_once(
    groups: int, short_per_long: int, short_tokens: int, long_tokens: int
) -> list[PlannedRequest]:
    """Everything arrives in the first instant: what counts is how fast the pile is worked off."""
    size = short_per_long + 1
    return [
        _request(0.0, index % size == size // 2, short_tokens, long_tokens, index)
        for index in range(groups * size)
    ]


def steady(
    requests_per_s: float,
    duration_s: float,
    short_per_long: int,
    short_tokens: int,
    long_tokens: int,
    seed: int = 0,
) -> list[PlannedRequest]:
    """Arrivals at random moments of a steady rate: what counts is how long each one waits."""
    chance = random.Random(seed)
    plan: list[PlannedRequest] = []
    at_s = chance.expovariate(requests_per_s)
    while at_s < duration_s:
        is_long = len(plan) % (short_per_long + 1) == short_per_long // 2
        plan.append(_request(at_s, is_long, short_tokens, long_tokens, len(plan)))
        at_s += chance.expovariate(requests_per_s)
    return plan
