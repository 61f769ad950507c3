"""Runs every engine several times in turn and prints the medians beside the goals."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.default_model import default_model_path
from benchmarks.peers.workload import CASES, LONG_PROMPT, NEW_TOKENS, PROMPT_TOKENS, THREADS, decoding
from benchmarks.plots import Plots
from python_backend.engine.host.processor import cpu_flags

ROUNDS = 3
LLAMA_CPP = "llama-cpp-python==0.3.36"
# What llama.cpp calls instructions of x86, and Linux.
_LLAMA_INSTRUCTIONS = {
    "SSE42": "sse4_2",
    "AVX": "avx",
    "AVX2": "avx2",
    "BMI2": "bmi2",
    "FMA": "fma",
    "F16C": "f16c",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512bw",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_TILE": "amx_tile",
    "AMX_INT8": "amx_int8",
    "AMX_BF16": "amx_bf16",
}
# The first of each that stores a tile's configuration before it is loaded, always: gcc's bug 114098.
_FIRST_GCC_WITH_TILES = {11: (11, 5), 12: (12, 4), 13: (13, 3)}
_HERE = Path(__file__).parent
_LIMIT_S = 900


@dataclass
class Peer:
    name: str
    command: list[str]
    rounds: int = ROUNDS
    rates: dict[str, list[float]] = field(default_factory=dict)

    def run(self) -> None:
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name} ended with {done.returncode}: {done.stderr[-2000:]}")
        latest: dict[str, float] = {}
        for line in done.stdout.splitlines():
            if line.startswith('{"case"'):
                said = json.loads(line)
                latest[said["case"]] = said["tokens_per_s"]
        for case, rate in latest.items():
            self.rates.setdefault(case, []).append(rate)

    def rate(self, case: str) -> float:
        return median(self.rates[case])


def llama_python(folder: Path, console: Console) -> str:
    """An environment with llama.cpp built on this machine, made at the first run (a quarter of an hour)."""
    python = folder / "llama" / "bin" / "python"
    if not python.exists():
        console.print(f"  building {LLAMA_CPP} from its source package …")
        venv.create(folder / "llama", with_pip=True)
        options = ["--quiet", "--no-cache-dir", "--no-binary", "llama-cpp-python"]
        pip = [str(python), "-m", "pip", "install", *options, LLAMA_CPP]
        if broken := tiles_broken_by(gcc_version()) & cpu_flags():
            console.print("  without AMX: this gcc's programs with tiles die; 12.4, 13.3 and 14 work")
        environment = os.environ | {"CMAKE_ARGS": llama_options(cpu_flags() - broken, platform.machine())}
        subprocess.run(pip, check=True, env=environment)
    return str(python)


def gcc_version() -> tuple[int, ...]:
    """Of the compiler that builds llama.cpp; nothing where it is another one."""
    try:
        said = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(map(int, said.strip().split(".")))


def tiles_broken_by(gcc: tuple[int, ...]) -> set[str]:
    works = not gcc or gcc >= _FIRST_GCC_WITH_TILES.get(gcc[0], (14,))
    return set() if works else {"amx_tile", "amx_int8", "amx_bf16"}


def llama_options(flags: set[str], machine: str) -> str:
    """For the instructions that Linux lets programs use: a compiler takes what the processor says for itself.

    A virtual machine may not have switched all of that on, and the first such instruction ends the program.
    """
    if machine != "x86_64":
        return ""
    chosen = (
        f"-DGGML_{name}={'ON' if flag in flags else 'OFF'}" for name, flag in _LLAMA_INSTRUCTIONS.items()
    )
    return " ".join(("-DGGML_NATIVE=OFF", *chosen))


def peers(folder: Path, model: str, console: Console) -> list[Peer]:
    python = llama_python(folder, console)
    worker = str(_HERE / "llama_worker.py")
    requantised = {name: str(folder / f"{name}.gguf") for name in ("q4_0", "q8_0")}
    for name, target in requantised.items():
        subprocess.run([python, worker, model, name, target], check=True, capture_output=True)
    ours = [sys.executable, "-m", "benchmarks.peers.inflight_worker", model]
    theirs = [sys.executable, "-m", "benchmarks.peers.transformers_worker", model]
    return [
        Peer("inflight int8", [*ours, "int8"]),
        Peer("inflight int4", [*ours, "int4"]),
        Peer("inflight fp32", [*ours, "fp32"]),
        Peer("llama.cpp Q4_1 (as shipped)", [python, worker, model]),
        Peer("llama.cpp Q4_0 (requantised)", [python, worker, requantised["q4_0"]]),
        Peer("llama.cpp Q8_0 (requantised)", [python, worker, requantised["q8_0"]]),
        # Slow, and far away: once is enough to tell.
        Peer("transformers generate, fp32", [*theirs, "generate"], rounds=1),
        Peer("transformers continuous batching, fp32", [*theirs, "continuous"], rounds=1),
    ]


def report(console: Console, plots: Plots) -> bool:
    folder = Path(".data/peers")
    folder.mkdir(parents=True, exist_ok=True)
    model = default_model_path(console)
    console.print(
        f"SmolLM2-135M: prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new ones each, and one long prompt; "
        f"{THREADS} threads; median of {ROUNDS} rounds (transformers: one), the engines taking turns"
    )
    everyone = peers(folder, model, console)
    for number in range(ROUNDS):
        for peer in everyone:
            if number < peer.rounds:
                console.print(f"  round {number + 1}: {peer.name} …")
                peer.run()
    table = Table("tok/s, all requests together", *CASES)
    for peer in everyone:
        table.add_row(peer.name, *(f"{peer.rate(case):.0f}" for case in CASES))
    console.print(table)
    plots.bars(
        "peers",
        f"SmolLM2-135M, {THREADS} threads",
        "tokens/s",
        CASES,
        {peer.name: [peer.rate(case) for case in CASES] for peer in everyone},
    )
    return judge(everyone, console)


def judge(everyone: list[Peer], console: Console) -> bool:
    """Our best of int8 and int4 is at least level with the best of llama.cpp, which is not always the same.

    Prompts also with transformers; and what transformers decodes together is decoded in half the time.
    """
    table = Table("the best of int8 and int4", "against the best of", "goal", "ratio", "")
    met = True
    for case in CASES:
        ours = _best(everyone, case, "inflight int")
        theirs = ("llama.cpp", "transformers") if case == LONG_PROMPT else ("llama.cpp",)
        goals = {theirs: 1.0} | ({} if case in (LONG_PROMPT, decoding(1)) else {("transformers",): 2.0})
        for names, share in goals.items():
            ratio = ours / _best(everyone, case, *names)
            met &= ratio >= share
            said = "met" if ratio >= share else "MISSED"
            table.add_row(case, " and ".join(names), f"{share:g} ×", f"{ratio:.2f} ×", said)
    console.print(table)
    return met


def _best(everyone: list[Peer], case: str, *names: str) -> float:
    return max(peer.rate(case) for peer in everyone if peer.name.startswith(names))
