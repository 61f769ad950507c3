"""`python -m benchmarks.queue_delay`: what waiting for a batch brings, under one objective at three rates.

The real embedding model, of random weights, three ways: the tuned queue delay, a delay of 0, under which
Triton still computes together what came meanwhile, and no batches at all. Rates are multiples of what the
model does one by one; what counts is how many requests a second are answered within the objective. Beside
what was measured stands what the learned cost of batches says could be had at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.delays import MINILM, Case
from benchmarks.objectives.embeddings import NO_ENGINE, delay_of, idle_ms
from benchmarks.objectives.fixed_cost import write_random_minilm
from benchmarks.objectives.posting import Posted, post
from benchmarks.objectives.serving import Served, Setup, serving
from loadtest.percentiles import percentile
from python_backend.costs.batch_cost import BatchCost
from python_backend.wire.tiers import Tier
from router.core.objective import Objective

GOAL_IDLE_MS = 1.0
# One process sends no more than that, so that it is not what is measured.
PER_CLIENT_S = 400.0
TUNED, NO_DELAY, ONE_BY_ONE = "tuned delay", "delay 0", "one by one"


@dataclass(frozen=True)
class Plan:
    """`times` are rates, in multiples of what is done one by one; `goal` of the last of them."""

    objective_ms: float
    times: tuple[float, ...]
    goal: float
    seconds: float = 8.0
    window_s: float = 1.5
    settings: tuple[str, ...] = ()
    text_model: str | None = None

    @property
    def case(self) -> Case:
        return Case(MINILM, self.objective_ms / 1000, (), self.seconds, self.window_s)


@dataclass(frozen=True)
class Figure:
    """One rate under one way to batch."""

    way: str
    per_s: float
    good_per_s: float
    p95_ms: float
    refused: float
    mean_batch: float
    delay_ms: float


def send(plan: Plan, url: str, per_s: float, seconds: float, seed: int) -> list[Posted]:
    """Poisson arrivals, from as many processes as the rate needs."""
    clients = max(1, round(per_s / PER_CLIENT_S + 0.49))
    each = partial(_send_part, plan.case, url, per_s / clients, seconds)
    seeds = [100 * seed + number for number in range(clients)]
    if clients == 1:
        return each(seeds[0])
    with ProcessPoolExecutor(clients) as pool:
        return [posted for part in pool.map(each, seeds) for posted in part]


def _send_part(case: Case, url: str, per_s: float, seconds: float, seed: int) -> list[Posted]:
    return post(case.door(url), per_s, seconds, seed)


def measure(served: Served, plan: Plan, way: str, per_s: float) -> Figure:
    families = ("nv_inference_count", "nv_inference_exec_count")
    model = plan.case.triton_model
    before = [served.triton_metric(each, model=model) for each in families]
    posted = send(plan, served.url, per_s, plan.seconds, seed=7)
    rows, batches = (
        served.triton_metric(each, model=model) - then for each, then in zip(families, before, strict=True)
    )
    took_ms = sorted(1000 * each.took_s for each in posted if each.status == 200)
    good = sum(took <= plan.objective_ms for took in took_ms)
    refused = sum(each.status == 429 or each.status == 503 for each in posted) / max(1, len(posted))
    p95_ms = percentile(took_ms, 0.95) if took_ms else float("nan")
    delay_ms = asyncio.run(delay_of(served, model))
    return Figure(way, per_s, good / plan.seconds, p95_ms, refused, rows / max(1.0, batches), delay_ms)


async def _load(served: Served, model: str, change: Callable[[Any], None]) -> None:
    control = served.control()
    try:
        config = await control.config(model)
        change(config)
        await control.load(model, MessageToJson(config, preserving_proto_field_name=True))
    finally:
        await control.close()


def _without_delay(config: Any) -> None:
    config.dynamic_batching.max_queue_delay_microseconds = 0
    del config.dynamic_batching.preferred_batch_size[:]


def _without_batches(config: Any) -> None:
    _without_delay(config)
    config.max_batch_size = 1


def one_by_one_ms(served: Served, plan: Plan) -> float:
    """Of the model's time, for one request; the first ones are not typical."""
    families = ("nv_inference_compute_infer_duration_us", "nv_inference_exec_count")
    model, door = plan.case.triton_model, plan.case.door(served.url)
    post(door, 20.0, 2.0, seed=1)
    before = [served.triton_metric(each, model=model) for each in families]
    post(door, 10.0, 4.0, seed=2)
    us, batches = (
        served.triton_metric(each, model=model) - then for each, then in zip(families, before, strict=True)
    )
    return us / 1000 / max(1.0, batches)


def tuned(served: Served, plan: Plan, rates: Sequence[float], console: Console) -> Iterator[Figure]:
    """Each rate is sent until three windows agree and the change was judged; then it is measured."""
    for per_s in rates:
        send(plan, served.url, per_s, 14 * plan.window_s, seed=3)
        found = measure(served, plan, TUNED, per_s)
        console.print(f"  {found}")
        yield found


def untuned(
    served: Served, plan: Plan, way: str, change: Callable[[Any], None], rates: Sequence[float]
) -> Iterator[Figure]:
    asyncio.run(_load(served, plan.case.triton_model, change))
    for per_s in rates:
        send(plan, served.url, per_s, 3.0, seed=3)
        yield measure(served, plan, way, per_s)


def compare(served: Served, plan: Plan, console: Console) -> bool:
    case = plan.case
    served.inflight("tune", "pause", case.model)
    served.set_objectives(
        {Tier.STANDARD.label: Objective(case.model, Tier.STANDARD, end_to_end_s=case.objective_s)}
    )
    asyncio.run(_load(served, case.triton_model, _without_delay))
    alone_ms = one_by_one_ms(served, plan)
    rates = [times * 1000 / alone_ms for times in plan.times]
    console.print(f"one row takes {alone_ms:.2f} ms of the model's time: rates {[f'{r:.0f}' for r in rates]}")
    idle_0_ms = idle_ms(served, case)
    send(plan, served.url, rates[-1], plan.seconds, seed=6)  # until what batches take is learned
    figures = list(untuned(served, plan, NO_DELAY, _without_delay, rates))
    served.inflight("tune", "resume", case.model)
    figures += tuned(served, plan, rates, console)
    told = json.loads(served.inflight("tune", "explain", case.model, "--json"))
    console.print(served.inflight("tune", "explain", case.model))
    send(plan, served.url, 2.0, 6 * plan.window_s, seed=5)  # until the traffic that it was for is gone
    idle_tuned_ms = idle_ms(served, case)
    served.inflight("tune", "pause", case.model)
    figures += untuned(served, plan, ONE_BY_ONE, _without_batches, rates)
    return show(console, plan, figures, idle_tuned_ms - idle_0_ms, _learned(told))


def _learned(told: Any) -> BatchCost | None:
    """By rows alone, as long as those that were sent."""
    detail: dict[str, Any] = next((each["detail"] for model in told for each in model["standing"]), {})
    cost = detail.get("cost")
    if cost is None:
        return None
    learned = BatchCost(cost["base_ms"], cost["row_ms"], token_ms=cost["token_ms"])
    return learned.for_rows_of(detail.get("row_tokens", 0.0))


def attainable(cost: BatchCost, objective_ms: float, most_rows: int = 64) -> tuple[int, float]:
    """The largest batch of which two, the one before and one's own, fit the objective; and how many times as
    many rows a second such batches do as rows one by one."""
    fitting = [rows for rows in range(1, most_rows + 1) if 2 * cost.batch_ms(rows) <= objective_ms] or [1]
    return fitting[-1], cost.batch_ms(1) * fitting[-1] / cost.batch_ms(fitting[-1])


def show(
    console: Console, plan: Plan, figures: Sequence[Figure], idle_more_ms: float, cost: BatchCost | None
) -> bool:
    table = Table(
        "requests/s", "", f"within {plan.objective_ms:g} ms", "p95", "refused", "rows/batch", "delay"
    )
    for each in sorted(figures, key=lambda figure: figure.per_s):
        table.add_row(
            f"{each.per_s:.0f}",
            each.way,
            f"{each.good_per_s:.1f}/s",
            f"{each.p95_ms:.1f} ms",
            f"{each.refused:.1%}",
            f"{each.mean_batch:.2f}",
            f"{each.delay_ms:g} ms",
        )
    console.print(table)
    highest = max(each.per_s for each in figures)
    good = {each.way: each.good_per_s for each in figures if each.per_s == highest}
    batching, waiting = (good[TUNED] / max(good[way], 1e-9) for way in (ONE_BY_ONE, NO_DELAY))
    if cost is not None:
        rows, ratio = attainable(cost, plan.objective_ms)
        console.print(
            f"a batch of n rows takes {cost.base_ms:.2f} + {cost.row_ms:.3f} n ms: batches of {rows} do at "
            f"most {ratio:.2f} times what rows one by one do"
        )
    met = {
        f"{batching:.2f} times as many within the objective as one by one (goal {plan.goal:g})": batching
        >= plan.goal,
        f"{waiting:.2f} times as many as with a delay of 0 (goal: no fewer)": waiting >= 0.97,
        f"idle {idle_more_ms:+.2f} ms against a delay of 0 (goal {GOAL_IDLE_MS:+g})": idle_more_ms
        <= GOAL_IDLE_MS,
        "p95 within the objective at each rate": all(
            each.p95_ms <= plan.objective_ms for each in figures if each.way == TUNED
        ),
    }
    for what, is_met in met.items():
        console.print(f"{what}: {'met' if is_met else 'MISSED'}")
    return all(met.values())


@contextmanager
def serving_embeddings(plan: Plan) -> Iterator[Served]:
    router = {"tuning_window_s": plan.window_s}
    setup = Setup(NO_ENGINE, plan.text_model, router=router, embeddings=False)
    with tempfile.TemporaryDirectory() as folder, serving(setup) as served:
        path = write_random_minilm(Path(folder) / MINILM)
        options = [word for setting in plan.settings for word in ("--set", setting)]
        served.inflight("release", "add", MINILM, str(path), *options)
        served.inflight("release", "promote", f"{MINILM}@1")
        served.inflight("release", "load", f"{MINILM}@1")
        yield served


def run(plan: Plan) -> bool:
    console = Console(width=160)
    with serving_embeddings(plan) as served:
        return compare(served, plan, console)


def parser_of(description: str | None, plan: Plan) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--objective-ms", type=float, default=plan.objective_ms)
    parser.add_argument("--times", default=",".join(f"{each:g}" for each in plan.times), help="rates")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="of each measurement")
    return parser


def plan_of(asked: argparse.Namespace, goal: float, *settings: str, text_model: str | None = None) -> Plan:
    times = tuple(float(each) for each in asked.times.split(","))
    return Plan(asked.objective_ms, times, goal, asked.seconds, settings=settings, text_model=text_model)


DEFAULT = Plan(objective_ms=200.0, times=(0.3, 1.0, 2.0), goal=1.5)


def main() -> None:
    asked = parser_of(__doc__, DEFAULT).parse_args()
    sys.exit(not run(plan_of(asked, DEFAULT.goal)))


if __name__ == "__main__":
    main()
