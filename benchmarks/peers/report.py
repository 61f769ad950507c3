"""Runs every engine several times in turn and prints the medians beside the goals."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.default_model import default_model_path
from benchmarks.peers.workload import NEW_TOKENS, PARALLEL, PROMPT_TOKENS, THREADS
from benchmarks.plots import Plots

ROUNDS = 3
LLAMA_CPP = "llama-cpp-python==0.3.36"
_HERE = Path(__file__).parent
_LIMIT_S = 900


@dataclass
class Peer:
    name: str
    command: list[str]
    rounds: int = ROUNDS
    rates: dict[int, list[float]] = field(default_factory=dict)

    def run(self) -> None:
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {done.stderr[-2000:]}")
        latest: dict[int, float] = {}
        for line in done.stdout.splitlines():
            if line.startswith('{"parallel"'):
                said = json.loads(line)
                latest[said["parallel"]] = said["tokens_per_s"]
        for parallel, rate in latest.items():
            self.rates.setdefault(parallel, []).append(rate)

    def rate(self, parallel: int) -> float:
        return median(self.rates[parallel])


def llama_python(folder: Path, console: Console) -> str:
    """An environment with llama.cpp built on this machine, made at the first run (a quarter of an hour)."""
    python = folder / "llama" / "bin" / "python"
    if not python.exists():
        console.print(f"  building {LLAMA_CPP} from its source package …")
        venv.create(folder / "llama", with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python", LLAMA_CPP]
        subprocess.run(pip, check=True)
    return str(python)


def peers(folder: Path, model: str, console: Console) -> list[Peer]:
    python = llama_python(folder, console)
    worker = str(_HERE / "llama_worker.py")
    requantised = str(folder / "q4_0.gguf")
    subprocess.run([python, worker, model, "q4_0", requantised], check=True, capture_output=True)
    ours = [sys.executable, "-m", "benchmarks.peers.inflight_worker", model]
    theirs = [sys.executable, "-m", "benchmarks.peers.transformers_worker", model]
    return [
        Peer("inflight int8", [*ours, "int8"]),
        Peer("inflight int4", [*ours, "int4"]),
        Peer("inflight fp32", [*ours, "fp32"]),
        Peer("llama.cpp Q4_1 (as shipped)", [python, worker, model]),
        Peer("llama.cpp Q4_0 (requantised)", [python, worker, requantised]),
        # Slow, and far away: once is enough to tell.
        Peer("transformers generate, fp32", [*theirs, "generate"], rounds=1),
        Peer("transformers continuous batching, fp32", [*theirs, "continuous"], rounds=1),
    ]


@dataclass(frozen=True)
class Goal:
    """The default precision must reach `share` of what a peer does."""

    peer: str
    parallel: int
    share: float


GOALS = [
    *(Goal("llama.cpp Q4_1 (as shipped)", parallel, 1.0) for parallel in PARALLEL),
    Goal("llama.cpp Q4_0 (requantised)", 1, 0.5),
    Goal("llama.cpp Q4_0 (requantised)", 8, 1.0),
    Goal("llama.cpp Q4_0 (requantised)", 16, 1.0),
    Goal("transformers generate, fp32", 8, 2.0),
    Goal("transformers generate, fp32", 16, 2.0),
    Goal("transformers continuous batching, fp32", 8, 2.0),
    Goal("transformers continuous batching, fp32", 16, 2.0),
]


def report(console: Console, plots: Plots) -> bool:
    folder = Path(".data/peers")
    folder.mkdir(parents=True, exist_ok=True)
    model = default_model_path(console)
    console.print(
        f"Decoding SmolLM2-135M: prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new ones each, "
        f"{THREADS} threads; median of {ROUNDS} rounds (transformers: one), the engines taking turns"
    )
    everyone = peers(folder, model, console)
    for number in range(ROUNDS):
        for peer in everyone:
            if number < peer.rounds:
                console.print(f"  round {number + 1}: {peer.name} …")
                peer.run()
    table = Table("tok/s, all requests together", *(f"{parallel} parallel" for parallel in PARALLEL))
    for peer in everyone:
        table.add_row(peer.name, *(f"{peer.rate(parallel):.0f}" for parallel in PARALLEL))
    console.print(table)
    plots.bars(
        "peers",
        "Decoding SmolLM2-135M on two Neoverse-N1 cores",
        "tokens/s",
        [f"{parallel} parallel" for parallel in PARALLEL],
        {peer.name: [peer.rate(parallel) for parallel in PARALLEL] for peer in everyone},
    )
    return judge(everyone, console)


def judge(everyone: list[Peer], console: Console) -> bool:
    by_name = {peer.name: peer for peer in everyone}
    default = by_name["inflight int8"]
    table = Table("goal, for the default precision (int8)", "ratio", "")
    met = True
    for goal in GOALS:
        ratio = default.rate(goal.parallel) / by_name[goal.peer].rate(goal.parallel)
        is_met = ratio >= goal.share
        met &= is_met
        label = f"{goal.share:g} × {goal.peer} at {goal.parallel}"
        table.add_row(label, f"{ratio:.2f} ×", "met" if is_met else "MISSED")
    console.print(table)
    return met
