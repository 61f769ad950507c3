"""`python -m benchmarks.cheaper_answers TRACE`: what cached answers and a cascade save, and what they add.

A whole router answers over HTTP, streamed, to an open loop; behind it two models that are paced by the step
costs of their profiles, an answer alone in its batch. The trace gives arrivals and lengths. It has no texts:
so many of the requests are one of the earlier ones again, and of so many questions the small model is unsure,
of the same ones every time. What is paid is read from the usage that the router has recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from loadtest.traces import TracedRequest, read_trace
from python_backend.costs.step_cost import StepCost
from router.cascade.cascade import Cascade
from router.cascade.checks import Checks
from router.core.generation import Delta, GenerationCall, LoggedToken
from router.core.tenant import Limits, Price
from router.routing.models import ServedModel
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from simulator.planning.profiles import best_of, known_profiles
from tests.fakes.pipeline import FakePipeline, Step
from tests.router.running import COMPILED, MODEL, RunningRouter, running_router

NAME, LARGE = "thrifty", "large"
SURE, UNSURE, LEAST = -0.1, -2.0, -1.0
CHUNK = 8  # tokens of one delta
PROFILES = {MODEL: ("llama-8b", "bf16", 1), LARGE: ("llama-70b", "bf16", 2)}
PRICES = {MODEL: 0.2, LARGE: 0.9}  # dollars a million tokens, an example
_QUESTION = re.compile(r"question (\d+)")


@dataclass(frozen=True)
class Asked:
    """`question` names the text: two requests with one are the same, byte for byte."""

    at_s: float
    question: int
    is_repeat: bool
    length: TracedRequest


@dataclass(frozen=True)
class Answered:
    asked: Asked
    first_s: float
    whole_s: float
    cache: str
    cascade: str


@dataclass(frozen=True)
class Way:
    name: str
    model: str
    caches: bool = False


WAYS = (
    Way("large alone", LARGE),
    Way("large, cached", LARGE, caches=True),
    Way("cascade", NAME),
    Way("cascade, cached", NAME, caches=True),
    Way("small alone", MODEL),
)


def with_repeats(requests: Sequence[TracedRequest], per_s: float, share: float, seed: int) -> list[Asked]:
    chance = random.Random(seed)
    scale = (len(requests) - 1) / per_s / max(requests[-1].at_s - requests[0].at_s, 1e-9)
    found: list[Asked] = []
    for number, each in enumerate(requests):
        is_repeat = bool(found) and chance.random() < share
        source = chance.choice(found) if is_repeat else Asked(0.0, number, False, each)
        at_s = (each.at_s - requests[0].at_s) * scale
        found.append(Asked(at_s, source.question, is_repeat, source.length))
    return found


def cost_of(model: str) -> StepCost:
    named = PROFILES[model]
    return next(
        each.shape().cost
        for each in best_of(known_profiles())
        if (each.model, each.precision, each.tensor_parallel) == named and each.gpu == "h200"
    )


class Paced:
    """Scripts for one model: the pauses of its steps, and how sure it is of each token."""

    def __init__(self, model: str, asked: Sequence[Asked], unsure: float) -> None:
        self._cost = cost_of(model)
        self._lengths = {each.question: each.length for each in asked}
        self._unsure = unsure
        self.busy_s = 0.0

    def script(self, call: GenerationCall) -> list[Step]:
        found = _QUESTION.search(call.prompt)
        assert found is not None
        question = int(found[1])
        length, cost = self._lengths[question], self._cost
        first_s = (cost.base_ms + cost.prefill_token_ms * length.prompt_tokens) / 1e3
        step_s = (
            cost.base_ms + cost.decode_sequence_ms + cost.kv_kilotoken_ms * length.prompt_tokens / 1e3
        ) / 1e3
        log_prob = UNSURE if random.Random(question).random() < self._unsure else SURE
        token = LoggedToken(b"word ", log_prob, 5)
        steps: list[Step] = []
        made = 0
        while made < length.output_tokens:
            count = 1 if not made else min(CHUNK, length.output_tokens - made)
            pause_s = first_s if not made else count * step_s
            self.busy_s += pause_s
            told = (token,) * count if call.top_log_probs is not None else ()
            steps += [pause_s, Delta("word " * count, count, length.prompt_tokens, tokens=told)]
            made += count
        return [*steps, Delta("", prompt_tokens=length.prompt_tokens, finish="end_id")]


async def send(http: httpx.AsyncClient, way: Way, asked: Asked, begin_s: float, key: str) -> Answered:
    due_s = begin_s + asked.at_s
    await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
    text = f"question {asked.question} " + "word " * asked.length.prompt_tokens
    body = {"model": way.model, "messages": [{"role": "user", "content": text}], "stream": True}
    headers = {"authorization": f"Bearer {key}"} | ({"cache-control": "max-age=3600"} if way.caches else {})
    first_s = 0.0
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        assert stream.status_code == 200, await stream.aread()
        async for line in stream.aiter_lines():
            if not first_s and '"content":"word' in line:
                first_s = time.monotonic() - due_s
        told = stream.headers
    whole_s = time.monotonic() - due_s
    return Answered(
        asked, first_s, whole_s, told.get("x-inflight-cache", ""), told.get("x-inflight-cascade", "")
    )


def _set_price(price: Price, admin: Administration) -> None:
    admin.set_price(SYSTEM, price)


@dataclass(frozen=True)
class Result:
    way: Way
    answered: tuple[Answered, ...]
    dollars: float
    busy_s: dict[str, float]

    def times(self, field: str) -> tuple[float, float]:
        """The median and the 95th percentile."""
        found = sorted(getattr(each, field) for each in self.answered)
        return statistics.median(found), found[int(0.95 * (len(found) - 1))]

    def share(self, field: str, text: str) -> float:
        return sum(text in getattr(each, field) for each in self.answered) / len(self.answered)


async def run(way: Way, asked: Sequence[Asked], unsure: float) -> Result:
    paced = {name: Paced(name, asked, unsure) for name in PROFILES}
    large = FakePipeline(paced[LARGE].script)
    cascade = Cascade(NAME, MODEL, LARGE, Checks(least_log_prob=LEAST))
    others = [ServedModel(LARGE, large, COMPILED)]
    async with running_router(cascade=cascade, others=others) as router:
        router.pipeline.script = paced[MODEL].script
        for name, dollars in PRICES.items():
            micro = round(dollars * 1e6)
            await router.parts.tenancy.administer(partial(_set_price, Price(name, micro, micro, micro)))
        tenant = await router.new_tenant("acme", Limits(answers_cached_s=3600))
        key = await router.new_key(tenant)
        answered = await _all_of(router, way, asked, key)
        used = await router.usage(tenant)
    return Result(
        way,
        tuple(answered),
        sum(each.cost for each in used) / 1e6,
        {name: each.busy_s for name, each in paced.items()},
    )


async def _all_of(router: RunningRouter, way: Way, asked: Sequence[Asked], key: str) -> list[Answered]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=router.url, trust_env=False, timeout=120, limits=limits) as http:
        begin_s = time.monotonic() + 0.5
        return await asyncio.gather(*(send(http, way, each, begin_s, key) for each in asked))


def report(results: Sequence[Result], console: Console) -> None:
    base = results[0]
    table = Table("way", "paid", "of it", "GPU time", "hits", "sent on", "first p50, p95", "whole p50, p95")
    gpus = {name: PROFILES[name][2] for name in PROFILES}
    whole = sum(base.busy_s[name] * gpus[name] for name in gpus)
    for each in results:
        first, all_of_it = each.times("first_s"), each.times("whole_s")
        table.add_row(
            each.way.name,
            f"${each.dollars:.4f}",
            f"{each.dollars / base.dollars:.0%}",
            f"{sum(each.busy_s[name] * gpus[name] for name in gpus) / whole:.0%}",
            f"{each.share('cache', 'hit'):.0%}",
            f"{each.share('cascade', 'reason'):.0%}",
            f"{first[0]:.3f}, {first[1]:.3f} s",
            f"{all_of_it[0]:.2f}, {all_of_it[1]:.2f} s",
        )
    console.print(table)
    cached, cascade = results[1], results[2]
    compare("not in the cache", base, cached, lambda each: each.cache == "miss", console)
    compare("in the cache", base, cached, lambda each: each.cache == "hit", console)
    compare("sent on to the large model", base, cascade, lambda each: "reason" in each.cascade, console)
    compare("answered by the small model", base, cascade, lambda each: "reason" not in each.cascade, console)


def compare(
    words: str, base: Result, result: Result, is_one: Callable[[Answered], bool], console: Console
) -> None:
    """The same requests by the large model alone and by another way."""
    chosen = {each.asked.at_s for each in result.answered if is_one(each)}
    sides = [[each for each in side.answered if each.asked.at_s in chosen] for side in (base, result)]
    if not chosen:
        return
    for field in ("first_s", "whole_s"):
        was, now = (statistics.median(getattr(each, field) for each in side) for side in sides)
        console.print(f"{len(chosen)} {words}, {field[:-2]}, p50: {was:.3f} s before, {now:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--per-s", type=float, default=4.0)
    parser.add_argument(
        "--repeats", type=float, default=0.3, help="share of requests that repeat an earlier one"
    )
    parser.add_argument("--unsure", type=float, default=0.25, help="share of questions the small model fails")
    typed = parser.parse_args()
    requests = [each for each in read_trace(typed.trace).requests if each.output_tokens][: typed.requests]
    asked = with_repeats(requests, typed.per_s, typed.repeats, seed=1)
    console = Console(width=120)
    repeats = sum(each.is_repeat for each in asked)
    console.print(f"{len(asked)} requests, {repeats} of them repeats, {typed.per_s:g} a second")
    report([asyncio.run(run(way, asked, typed.unsure)) for way in WAYS], console)


if __name__ == "__main__":
    main()
