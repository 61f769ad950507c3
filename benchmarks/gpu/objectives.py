"""`python -m benchmarks.gpu.objectives`: the arena with an 8B model, queue delays of embeddings, and T16.

On the GPU's host `--keep DIRECTORY` keeps what was seen; elsewhere `--draw DIRECTORY` makes the plots of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.llama_8b import RANDOM_WEIGHTS, write_checkpoint
from benchmarks.objectives import arena as arena_defaults
from benchmarks.objectives import arena_report, delay_report
from benchmarks.objectives.arena import Arena, Wish, arrivals, measure, sized
from benchmarks.objectives.arrivals import in_tiers
from benchmarks.objectives.delays import MINILM, Case
from benchmarks.objectives.embeddings import NO_ENGINE, compare, serving_model
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.reloading import reload_under_traffic
from benchmarks.objectives.scenarios import POLICIES
from benchmarks.plots import Plots
from python_backend.wire.tiers import Tier

PARTS = ("arena", "overload", "paced", "embeddings")
# `even_context` is that of the 8B shape.
ENGINE = Engine(places=48, kv_tokens=32_768, step_tokens=2048, block_tokens=64, even_context=13_312)
# Random weights: nobody reads the answers, and steps take the same time.
PARAMETERS = {**RANDOM_WEIGHTS, "inflight_max_sequence_tokens": "8192", **sized(ENGINE)}
FIRST_TOKEN_S = {Tier.INTERACTIVE: 0.5, Tier.STANDARD: 1.5, Tier.BATCH: 8.0}
INTER_TOKEN_S = {Tier.INTERACTIVE: 0.03, Tier.STANDARD: 0.05, Tier.BATCH: 0.1}
EMBEDDINGS = Case(
    MINILM, 0.12, (5.0, 20.0, 50.0), seconds=6.0, window_s=1.2, delays_ms=(0.0, 5.0, 20.0, 50.0)
)
ARENA_FILE, PACED_FILE, EMBEDDINGS_FILE = "arena.json", "paced.json", "embeddings.json"
# The same for all tiers, below, at twice and far beyond what the GPU can do: within eight minutes in all.
OVERLOAD_FILE, OVERLOAD_FACTORS, OVERLOAD_SECONDS = "overload.json", (0.8, 2.0, 10.0), 12.0
OVERLOAD_FIRST_TOKEN_S, OVERLOAD_INTER_TOKEN_S = 1.0, 0.04


def run_arena(asked: argparse.Namespace, model: Path, console: Console) -> bool:
    arena = Arena(
        in_tiers(arrivals(asked.trace).clamp(4096)),
        None,
        ENGINE,
        PARAMETERS,
        seconds=asked.seconds,
        settle_s=asked.seconds / 4,
        clients=asked.clients,
        model=str(model),
        data_dir=model.parent / "data",
        first_token_s=FIRST_TOKEN_S,
        inter_token_s=INTER_TOKEN_S,
    )
    ours, *others = POLICIES
    wishes = [Wish([ours], (1.0, 2.0, 10.0), noisy=True), Wish(others, (2.0,))]
    kept = measure(arena, wishes, console, asked.keep and asked.keep / ARENA_FILE)
    return arena_report.show(console, kept)


def run_overload(asked: argparse.Namespace, model: Path, console: Console) -> bool:
    """Every policy at every rate, beside what the simulator foretells."""
    arena = Arena(
        in_tiers(arrivals(asked.trace).clamp(4096)),
        None,
        ENGINE,
        PARAMETERS,
        seconds=OVERLOAD_SECONDS,
        settle_s=OVERLOAD_SECONDS / 4,
        clients=asked.clients,
        model=str(model),
        data_dir=model.parent / "data",
        first_token_s=dict.fromkeys(Tier, OVERLOAD_FIRST_TOKEN_S),
        inter_token_s=dict.fromkeys(Tier, OVERLOAD_INTER_TOKEN_S),
    )
    kept = measure(
        arena, [Wish(POLICIES, OVERLOAD_FACTORS)], console, asked.keep and asked.keep / OVERLOAD_FILE
    )
    return arena_report.show(console, kept)


def run_paced(asked: argparse.Namespace, model: Path, console: Console) -> bool:
    """Every load test, with an engine that leaves the host alone: cores to spare are what it needs here."""
    (model / "model.safetensors").touch()  # asked for, and not read
    arena = Arena(
        in_tiers(arrivals(asked.trace).clamp(4096)),
        arena_defaults.COST,
        arena_defaults.ENGINE,
        {**arena_defaults.paced(arena_defaults.COST, arena_defaults.ENGINE), "inflight_device": "cpu"},
        seconds=asked.paced_seconds,
        settle_s=asked.paced_seconds / 4,
        clients=asked.clients,
        model=str(model),
        data_dir=model.parent / "data",
    )
    ours, *others = POLICIES
    every = Wish([ours], (1.0, 2.0, 10.0), noisy=True, burst=True, retry_storm=True)
    kept = measure(arena, [every, Wish(others, (2.0,))], console, asked.keep and asked.keep / PACED_FILE)
    return arena_report.show(console, kept)


def run_embeddings(asked: argparse.Namespace, model: Path, console: Console) -> bool:
    (model / "model.safetensors").touch()  # asked for, and not read
    with serving_model(EMBEDDINGS, NO_ENGINE, str(model)) as served:
        reloaded = reload_under_traffic(served, EMBEDDINGS)
        console.print(str(reloaded))
        points = compare(served, EMBEDDINGS, console)
    if asked.keep:
        delay_report.keep(asked.keep / EMBEDDINGS_FILE, EMBEDDINGS, points)
    return delay_report.show(console, EMBEDDINGS, points) and reloaded.is_met


def draw(directory: Path, plots: Plots) -> None:
    for name in (ARENA_FILE, OVERLOAD_FILE, PACED_FILE):
        if (directory / name).is_file():
            arena_report.draw(plots, arena_report.read(directory / name), Path(name).stem)
    if (directory / EMBEDDINGS_FILE).is_file():
        delay_report.draw(plots, *delay_report.read(directory / EMBEDDINGS_FILE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="arena,embeddings", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--trace", type=Path, help="a file of arrivals; generated if none is given")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run in the arena")
    parser.add_argument("--paced-seconds", type=float, default=25.0, help="of each run of the paced engine")
    parser.add_argument("--clients", type=int, default=4, help="processes that send")
    parser.add_argument("--keep", type=Path, help="the directory for the measurements, as JSON")
    parser.add_argument(
        "--draw", type=Path, help="plot the measurements in such a directory, and measure nothing"
    )
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where to write the plots")
    asked = parser.parse_args()
    if asked.draw:
        draw(asked.draw, Plots(asked.plots))
        return
    console = Console(width=170)
    runs = {
        "arena": run_arena,
        "overload": run_overload,
        "paced": run_paced,
        "embeddings": run_embeddings,
    }
    is_met = True
    for part in asked.parts.split(","):
        if part not in runs:
            sys.exit(f"unknown part {part}; there are: {', '.join(PARTS)}")
        with tempfile.TemporaryDirectory() as folder:
            is_met &= runs[part](asked, write_checkpoint(Path(folder) / "llama-8b"), console)
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
