"""What people ask of a plan: the same search with one thing changed, or one thing measured."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, inf
from typing import TYPE_CHECKING

from loadtest.traces import BLOCK_TOKENS, Trace
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from router.routing.replica_choice import Opening, answer_tokens, choose
from simulator.planning.capacity import CapacitySearch, with_prompts
from simulator.planning.profiles import MODELS
from simulator.planning.proof import prove_release
from simulator.planning.search import Plan, priced, with_spare

if TYPE_CHECKING:
    from simulator.planning.search import Choice

# Prefilled caches travel between GPUs at this rate, as over one 400 Gbit/s port.
_TRANSFER_BYTES_PER_S = 40e9
# Without hashes in the trace: the part of prompts that repeats, of which nothing is known.
_ASSUMED_REPEATS = 0.3
_AFFINITY_REPLICAS = 8


class WhatIf(str, Enum):
    RATE = "rate"
    PROMPTS = "prompts"
    PRECISION = "precision"
    SIZE = "size"
    SPLIT = "split"
    AFFINITY = "affinity"
    TIER = "tier"
    TENANT10X = "tenant10x"
    RELEASE = "release"


@dataclass(frozen=True)
class Row:
    """One answer: what was asked, what it would take, and its cost beside that of the plan."""

    asked: str
    answer: str
    replicas: int
    dollars_per_h: float
    times: float


def answers(plan: Plan, asked: WhatIf) -> list[Row]:
    return _ANSWERS[asked](plan)


def _row(plan: Plan, asked: str, answer: str, choice: Choice | None) -> Row:
    if choice is None:
        return Row(asked, "no replica keeps these objectives", 0, 0.0, 0.0)
    cost = choice.dollars_per_h
    return Row(asked, answer or choice.profile.name, choice.replicas, cost, cost / plan.best.dollars_per_h)


def _again(plan: Plan, trace: Trace, objectives: dict[Tier, Objective] | None = None) -> Choice | None:
    """The plan's kind of replica on other traffic."""
    wish = plan.wish
    wish = replace(wish, traffic=replace(wish.traffic, trace=trace), objectives=objectives or wish.objectives)
    search = CapacitySearch(trace, wish.objectives, wish.goal)
    return priced(wish, plan.best.profile, search.of(plan.best.profile))


def _rate(plan: Plan) -> list[Row]:
    wish = plan.wish
    traffic = replace(wish.traffic, peak_per_s=1.2 * wish.traffic.peak_per_s)
    choice = priced(replace(wish, traffic=traffic), plan.best.profile, plan.best.capacity)
    return [_row(plan, "20 % more requests", "", choice)]


def _prompts(plan: Plan) -> list[Row]:
    return [_row(plan, "prompts twice as long", "", _again(plan, with_prompts(plan.wish.traffic.trace, 2)))]


def _best_by(plan: Plan, name: str) -> list[Row]:
    first: dict[object, Choice] = {}
    for choice in plan.choices:
        first.setdefault(getattr(choice.profile, name), choice)
    return [
        _row(plan, f"{key}" if name == "precision" else f"{key} GPUs a replica", "", choice)
        for key, choice in first.items()
    ]


def _split(plan: Plan) -> list[Row]:
    """Prompts on some replicas, answers on others: what each pool can do, and the time the cache travels."""
    wish, profile = plan.wish, plan.best.profile
    trace, capacity = wish.traffic.trace, plan.best.capacity
    moved = wish.traffic.prompt_tokens * MODELS[wish.model].kv_bytes / _TRANSFER_BYTES_PER_S
    sooner = {
        tier: Objective(each.model, tier, max((each.patience_s - moved), 0.01), None)
        for tier, each in wish.objectives.items()
    }
    only_prompts = replace(trace, requests=tuple(replace(each, output_tokens=1) for each in trace.requests))
    prompts = CapacitySearch(only_prompts, sooner, wish.goal).of(profile)
    decode_cost = replace(profile.cost, prefill_token_ms=1e-6)
    decoding = CapacitySearch(trace, wish.objectives, wish.goal).of(profile, decode_cost)
    if not prompts.per_s or not decoding.per_s:
        return [_row(plan, "prompts and answers apart", "", None)]
    peak, parallel = wish.traffic.peak_per_s, profile.tensor_parallel
    pools = [with_spare(max(ceil(peak / each.per_s), 1), wish, parallel) for each in (prompts, decoding)]
    per_h = sum(pools) * parallel * wish.prices[profile.gpu]
    answer = f"{pools[0]} for prompts, {pools[1]} for answers; the cache travels {1000 * moved:.0f} ms"
    together = _row(plan, "prompts and answers together", "", priced(wish, profile, capacity))
    return [
        together,
        Row("prompts and answers apart (an estimate: vLLM serves so)", answer, sum(pools),
            per_h, per_h / plan.best.dollars_per_h),
    ]  # fmt: skip


@dataclass
class _Caching:
    """A replica as the router's choice sees it, with the blocks that its cache holds."""

    name: str
    room: int
    outstanding_tokens: int = 0
    begun: int = 0

    def __post_init__(self) -> None:
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def compute(self, blocks: tuple[int, ...]) -> int:
        """How many of the first ones are there already; all are then."""
        hits = next((at for at, each in enumerate(blocks) if each not in self.blocks), len(blocks))
        for each in blocks:
            self.blocks[each] = None
            self.blocks.move_to_end(each)
        while len(self.blocks) > self.room:
            self.blocks.popitem(last=False)
        return hits


def repeated_share(trace: Trace, kv_tokens: int, replicas: int, has_affinity: bool) -> float:
    """The part of prompt tokens that is cached where it goes, by the router's own choice of a replica.

    What is outstanding is what came in the last seconds: enough to spread requests as load does.
    """
    them = [_Caching(f"r{number}", kv_tokens // BLOCK_TOKENS) for number in range(replicas)]
    window: list[tuple[float, _Caching, int]] = []
    hit = total = first = 0
    for each in trace.requests:
        while first < len(window) and window[first][0] < each.at_s - 10.0:
            window[first][1].outstanding_tokens -= window[first][2]
            first += 1
        opening = Opening(str(each.blocks[:2]).encode(), each.prompt_tokens)
        chosen = choose(them, opening if has_affinity and each.blocks else None)
        assert chosen is not None
        size = each.prompt_tokens + answer_tokens(each.output_tokens, each.output_tokens)
        chosen.outstanding_tokens += size
        chosen.begun += 1
        window.append((each.at_s, chosen, size))
        hit += chosen.compute(each.blocks) * BLOCK_TOKENS
        total += each.prompt_tokens
    return min(hit / max(total, 1), 0.95)


def _affinity(plan: Plan) -> list[Row]:
    trace, profile = plan.wish.traffic.trace, plan.best.profile
    if any(each.blocks for each in trace.requests):
        count, origin = min(plan.best.needed, _AFFINITY_REPLICAS), "of this trace"
        shares = [repeated_share(trace, profile.kv_tokens, count, has) for has in (False, True)]
    else:
        origin = (
            f"assumed: {100 * _ASSUMED_REPEATS:.0f} % of prompts repeat, because the trace does not show it"
        )
        shares = [_ASSUMED_REPEATS / max(plan.best.needed, 1), _ASSUMED_REPEATS]
    return [
        _row(
            plan,
            f"{name} prefix affinity",
            f"{100 * share:.0f} % of prompt tokens cached, {origin}",
            _again(plan, with_prompts(trace, 1 - share)),
        )
        for name, share in zip(("without", "with"), shares, strict=True)
    ]


def _tier(plan: Plan) -> list[Row]:
    """What a promise costs: halved, and given to nobody."""
    trace, given = plan.wish.traffic.trace, plan.wish.objectives
    rows = []
    best = min(given) if given else Tier.INTERACTIVE
    if best in given:
        half = Objective(
            given[best].model, best, _half(given[best].first_token_s), _half(given[best].inter_token_s)
        )
        rows.append(_row(plan, f"{best.label} twice as fast", "", _again(plan, trace, {**given, best: half})))
    last = max(given) if given else Tier.BATCH
    alike = {tier: replace(given[last], tier=tier) for tier in given}
    rows.append(_row(plan, f"all requests wait as {last.label}", "", _again(plan, trace, alike)))
    return rows


def _half(value_s: float | None) -> float | None:
    return None if value_s is None else value_s / 2


def _tenant10x(plan: Plan) -> list[Row]:
    counts: dict[str, int] = defaultdict(int)
    for each in plan.wish.traffic.trace.requests:
        counts[each.tenant] += 1
    largest = max(counts, key=lambda name: counts[name])
    share = counts[largest] / sum(counts.values())
    traffic = plan.wish.traffic
    more = replace(traffic, peak_per_s=traffic.peak_per_s * (1 + 9 * share))
    choice = priced(replace(plan.wish, traffic=more), plan.best.profile, plan.best.capacity)
    name = largest or "the only tenant"
    served = _row(plan, f"{name} ({100 * share:.0f} %) comes with 10 times, and is served", "", choice)
    return [served, _others(plan, name, largest, share)]


def _others(plan: Plan, name: str, largest: str, share: float) -> Row:
    """On the plan's own replicas: what the others keep, by the router's fairness."""
    trace = plan.wish.traffic.trace
    again = tuple(
        replace(each, at_s=each.at_s + 1e-3 * number)
        for each in trace.requests
        if each.tenant == largest
        for number in range(1, 10)
    )
    flooded = trace.and_also(again)
    search = CapacitySearch(flooded, plan.wish.objectives, plan.wish.goal)
    per_replica = plan.wish.traffic.peak_per_s / plan.best.replicas
    figures = search.at(plan.best.profile, per_replica * (1 + 9 * share))
    others = [each for each in figures.tenants if each.tenant != largest]
    offered = sum(each.offered for each in others)
    kept = sum(each.good for each in others) / offered if offered else 1.0
    answer = f"{100 * kept:.1f} % of the others' requests keep their objectives"
    return Row(f"{name} comes with 10 times, on this fleet", answer, plan.best.replicas,
               plan.best.dollars_per_h, 1.0)  # fmt: skip


def _release(plan: Plan) -> list[Row]:
    kept, took_s = prove_release(plan)
    takes = f"takes {took_s / 60:.0f} min" if took_s < inf else "takes more than an hour"
    answer = f"{takes}; {100 * kept:.1f} % of the worst tier keep their objectives meanwhile"
    choice = plan.best
    return [Row("a release at the peak, on this fleet", answer, choice.replicas, choice.dollars_per_h, 1.0)]


_ANSWERS = {
    WhatIf.RATE: _rate,
    WhatIf.PROMPTS: _prompts,
    WhatIf.PRECISION: lambda plan: _best_by(plan, "precision"),
    WhatIf.SIZE: lambda plan: _best_by(plan, "tensor_parallel"),
    WhatIf.SPLIT: _split,
    WhatIf.AFFINITY: _affinity,
    WhatIf.TIER: _tier,
    WhatIf.TENANT10X: _tenant10x,
    WhatIf.RELEASE: _release,
}
