"""One objective at three arrival rates: every fixed queue delay against the one that is tuned.

A model whose batch takes a given time stands for any model of fixed cost; `--embeddings` measures the real
one, on machines with cores to spare. `python -m benchmarks.objectives.embeddings --help`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from google.protobuf.json_format import MessageToJson
from rich.console import Console

from benchmarks.objectives.delay_report import draw, keep, read, show
from benchmarks.objectives.delays import MINILM, SLEEPER, Case, Point
from benchmarks.objectives.fixed_cost import write_random_minilm, write_sleeper
from benchmarks.objectives.posting import Posted, post, post_alone
from benchmarks.objectives.serving import Served, Setup, serving
from benchmarks.plots import Plots
from loadtest.percentiles import percentile
from python_backend.costs.batch_cost import BatchCost
from python_backend.wire.tiers import Tier
from router.core.objective import Objective

COST = BatchCost(base_ms=3.5, row_ms=0.3)
# A text engine that nobody asks, and that costs nothing to start.
NO_ENGINE = {"inflight_runtime": "synthetic"}
IDLE_REQUESTS = 40


async def set_delay(served: Served, model: str, delay_ms: float) -> None:
    control = served.control()
    try:
        config = await control.config(model)
        config.dynamic_batching.max_queue_delay_microseconds = round(1000 * delay_ms)
        await control.load(model, MessageToJson(config, preserving_proto_field_name=True))
    finally:
        await control.close()


async def delay_of(served: Served, model: str) -> float:
    control = served.control()
    try:
        config = await control.config(model)
        return float(config.dynamic_batching.max_queue_delay_microseconds) / 1000
    finally:
        await control.close()


def measure(served: Served, case: Case, per_s: float, is_tuned: bool = False) -> Point:
    """Steady traffic; the mean batch is Triton's own count of rows and of batches."""
    families = ("nv_inference_count", "nv_inference_exec_count")
    before = [served.triton_metric(each, model=case.triton_model) for each in families]
    posted = post(case.door(served.url), per_s, case.seconds, seed=round(per_s))
    after = [served.triton_metric(each, model=case.triton_model) for each in families]
    rows, batches = (now - then for now, then in zip(after, before, strict=True))
    delay_ms = asyncio.run(delay_of(served, case.triton_model))
    return _point(per_s, delay_ms, is_tuned, posted, rows / max(1.0, batches))


def _point(
    per_s: float, delay_ms: float, is_tuned: bool, posted: Sequence[Posted], mean_batch: float
) -> Point:
    took_ms = sorted(1000 * each.took_s for each in posted if each.status == 200)
    return Point(
        per_s=per_s,
        delay_ms=delay_ms,
        is_tuned=is_tuned,
        requests=len(posted),
        failed=len(posted) - len(took_ms),
        p50_ms=percentile(took_ms, 0.5),
        p95_ms=percentile(took_ms, 0.95),
        mean_batch=mean_batch,
    )


def idle_ms(served: Served, case: Case) -> float:
    posted = post_alone(case.door(served.url), IDLE_REQUESTS)
    return 1000 * percentile(sorted(each.took_s for each in posted), 0.5)


def fixed_points(served: Served, case: Case, console: Console) -> list[Point]:
    points = []
    for delay_ms in case.delays_ms:
        asyncio.run(set_delay(served, case.triton_model, delay_ms))
        post_alone(case.door(served.url), 10, 0.02)
        idle = idle_ms(served, case)
        for per_s in case.rates_per_s:
            point = measure(served, case, per_s)
            points.append(replace(point, idle_ms=idle))
            console.print(
                f"  {delay_ms:g} ms at {per_s:g}/s: p95 {point.p95_ms:.1f} ms, {point.mean_batch:.2f}"
            )
    return points


def tuned_points(served: Served, case: Case, console: Console) -> list[Point]:
    """Each rate until the tuner has had its time, then measured; idle at the end, as it is left alone."""
    asyncio.run(set_delay(served, case.triton_model, 0))
    objective = Objective(case.model, Tier.STANDARD, end_to_end_s=case.objective_s)
    served.set_objectives({Tier.STANDARD.label: objective})
    points = []
    for per_s in case.rates_per_s:
        point = _settled(served, case, per_s)
        points.append(point)
        console.print(f"  tuned to {point.delay_ms:g} ms at {per_s:g}/s: p95 {point.p95_ms:.1f} ms")
    post_alone(case.door(served.url), round(case.settle_s / 0.5), 0.5)
    idle = idle_ms(served, case)
    console.print(f"  idle: {idle:.1f} ms")
    return [replace(point, idle_ms=idle) for point in points]


def _settled(served: Served, case: Case, per_s: float, tries: int = 3) -> Point:
    """Measured while the delay stays what it is, if it does."""
    for _ in range(tries):
        post(case.door(served.url), per_s, case.settle_s, seed=3)
        before_ms = asyncio.run(delay_of(served, case.triton_model))
        point = measure(served, case, per_s, is_tuned=True)
        if point.delay_ms == before_ms:
            return point
    return point


def add_model(served: Served, case: Case, folder: Path) -> None:
    if case.model == SLEEPER:
        path = write_sleeper(folder / SLEEPER, COST)
    else:
        path = write_random_minilm(folder / MINILM)
    served.inflight("release", "add", case.model, str(path))
    served.inflight("release", "promote", f"{case.model}@1")
    served.inflight("release", "load", f"{case.model}@1")


@contextmanager
def serving_model(case: Case, engine: Mapping[str, str], model: str | None = None) -> Iterator[Served]:
    """The model of the case beside a text model with that engine."""
    setup = Setup(engine, model, router={"tuning_window_s": case.window_s})
    with tempfile.TemporaryDirectory() as folder, serving(setup) as served:
        add_model(served, case, Path(folder))
        yield served


def compare(served: Served, case: Case, console: Console) -> list[Point]:
    points = fixed_points(served, case, console) + tuned_points(served, case, console)
    console.print(served.inflight("tune", "explain", case.model))
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", action="store_true", help="the real arithmetic instead of a sleep")
    parser.add_argument("--rates", default="4,60,220", help="requests a second, comma-separated")
    parser.add_argument("--objective-ms", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--window", type=float, default=2.0, help="seconds of a window of the tuner")
    parser.add_argument("--keep", type=Path, help="where to write the measurements, as JSON")
    parser.add_argument("--draw", type=Path, help="plot the measurements in such a file, and measure nothing")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where to write the plots")
    asked = parser.parse_args()
    console = Console(width=160)
    if asked.draw:
        case, points = read(asked.draw)
        draw(Plots(asked.plots), case, points)
        sys.exit(not show(console, case, points))
    model = MINILM if asked.embeddings else SLEEPER
    rates = tuple(float(each) for each in asked.rates.split(","))
    case = Case(model, asked.objective_ms / 1000, rates, asked.seconds, asked.window)
    with serving_model(case, NO_ENGINE) as served:
        points = compare(served, case, console)
    if asked.keep:
        keep(asked.keep, case, points)
    sys.exit(not show(console, case, points))


if __name__ == "__main__":
    main()
