"""Traces made into plans: the tenants' tiers, the rate, floods and bursts; and how much an engine can do."""

from __future__ import annotations

import csv
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.traces import Trace, TracedRequest
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier

# The tier of a tenant by its place among all of them, the one that asks most first: each tier has some of the
# large ones, and interactive and standard have about twice the requests of batch.
_TIERS = (Tier.INTERACTIVE, Tier.STANDARD, Tier.BATCH, Tier.STANDARD, Tier.INTERACTIVE)
_KV_SHARE = 0.9  # what admission gives away of the cache


def in_tiers(trace: Trace) -> Trace:
    """Each tenant keeps to one tier."""
    asked = Counter(each.tenant for each in trace.requests)
    ordered = sorted(asked, key=lambda tenant: (-asked[tenant], tenant))
    tiers = {tenant: _TIERS[place % len(_TIERS)].label for place, tenant in enumerate(ordered)}
    return trace.with_tiers(lambda each: tiers[each.tenant])


def shorter(trace: Trace, times: int) -> Trace:
    """Prompts and answers, each of a token at least."""
    requests = (
        replace(
            each,
            prompt_tokens=max(1, each.prompt_tokens // times),
            output_tokens=max(1, each.output_tokens // times),
        )
        for each in trace.requests
    )
    return replace(trace, requests=tuple(requests))


def at_rate(trace: Trace, per_s: float, seconds: float) -> Trace:
    """So many requests a second, with the mixture of the whole trace however long that would have taken.

    Some of its requests are left out, evenly, or it is played several times.
    """
    wanted = max(1, round(per_s * seconds))
    turns = math.ceil(wanted / len(trace.requests))
    turn_s = seconds / turns
    scale = turn_s / max(trace.duration_s, 1e-9) * (1 - 1 / len(trace.requests))
    plan = []
    for number in range(wanted):
        turn, place = divmod(number * turns * len(trace.requests) // wanted, len(trace.requests))
        each = trace.requests[place]
        plan.append(replace(each, at_s=turn * turn_s + each.at_s * scale))
    return replace(trace, requests=tuple(plan))


def flood(
    like: Trace, tenant: str, tier: Tier, per_s: float, seconds: float, from_s: float = 0.0
) -> list[TracedRequest]:
    """One more tenant, who asks for what the others ask for and cares for nobody."""
    chance = random.Random(11)
    plan = []
    at_s = from_s + chance.expovariate(per_s)
    while at_s < seconds:
        plan.append(replace(chance.choice(like.requests), at_s=at_s, tenant=tenant, tier=tier.label))
        at_s += chance.expovariate(per_s)
    return plan


def burst(like: Trace, at_s: float, requests: int) -> list[TracedRequest]:
    """So many more within one second."""
    chance = random.Random(12)
    return [
        replace(chance.choice(like.requests), at_s=at_s + number / requests) for number in range(requests)
    ]


def work_ms(prompt_tokens: int, output_tokens: int, cost: StepCost, batch: float) -> float:
    """Engine time of one request in steps with so many sequences."""
    cached_tokens = prompt_tokens + output_tokens / 2
    token_ms = cost.base_ms / batch + cost.decode_sequence_ms + cost.kv_kilotoken_ms * cached_tokens / 1000
    return cost.prefill_token_ms * prompt_tokens + token_ms * output_tokens


def usual_batch(requests: Sequence[TracedRequest], places: int, kv_tokens: int) -> float:
    """How many run together when there is always more to do: all places, or what the cache holds."""
    # Of requests that are under way at some moment, long answers are the larger part.
    tokens = sum(each.output_tokens for each in requests)
    held = sum(each.output_tokens * (each.prompt_tokens + each.output_tokens) for each in requests) / tokens
    return max(1.0, min(float(places), _KV_SHARE * kv_tokens / held))


def capacity_per_s(requests: Sequence[TracedRequest], cost: StepCost, places: int, kv_tokens: int) -> float:
    """Requests of this mixture that one engine does in a second at most."""
    batch = usual_batch(requests, places, kv_tokens)
    work = sum(work_ms(each.prompt_tokens, each.output_tokens, cost, batch) for each in requests)
    return 1000 * len(requests) / work


def write_trace(requests: Sequence[TracedRequest], path: Path) -> Path:
    """For the simulator: the plan as it was sent."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("arrival_s", "tenant", "tier", "prompt_tokens", "output_tokens", "max_tokens"))
        for each in requests:
            lengths = each.prompt_tokens, each.output_tokens, each.output_tokens
            writer.writerow((f"{each.at_s:.4f}", each.tenant, each.tier, *lengths))
    return path
