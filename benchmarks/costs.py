"""What the engine costs beside the model: the scheduler's time a step, and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence as Row
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.default_model import default_model_path
from benchmarks.plots import Plots
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.host.memory import resident_bytes
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.ports import ChunkResult, Finished

RUNNING, STEPS, PROMPT_TOKENS = 256, 400, 100
STEP_GOAL_MS, MEMORY_GOAL_MB = 1.0, 300
KV_TOKENS = 8192


class NoModel:
    """Answers at once, always the same."""

    depth = 1
    most_choices = None

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> Finished:
        return Finished([ChunkResult(token_id=7) for _ in chunks])

    def release(self, sequence: Sequence) -> None:
        pass


def busy_engine() -> Engine:
    pool = BlockPool(RUNNING * 48, 16)
    config = EngineConfig("", max_batch_size=RUNNING, max_step_tokens=2048, guaranteed_no_evict=False)
    engine = Engine(config, EngineLimits(1000, 4096), pool, NoModel())
    for key in range(RUNNING):
        # Lengths differ, so that sequences do not all enter a new block in the same step.
        engine.add(key, GenerationRequest([key + 1] * (PROMPT_TOKENS + key % 16), 2 * STEPS + 100))
    while engine.gauges().running < RUNNING or engine.gauges().context:
        engine.step()
    return engine


def scheduler_times_ms(engine: Engine) -> list[float]:
    """What the scheduler takes of a step: the plan, and the blocks that became full."""
    scheduler = engine._scheduler
    took_ms = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        plan = scheduler.schedule()
        took_s = time.perf_counter() - began_s
        for chunk in plan.chunks:
            chunk.sequence.tokens.append(7)
        began_s = time.perf_counter()
        for chunk in plan.chunks:
            scheduler.commit(chunk)
        took_ms.append((took_s + time.perf_counter() - began_s) * 1000)
    return sorted(took_ms)


def step_times_ms(engine: Engine) -> list[float]:
    took_ms = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        engine.step()
        took_ms.append((time.perf_counter() - began_s) * 1000)
    return sorted(took_ms)


def memory_worker(model: str, precision: str) -> None:
    """Fills the whole KV cache and says what the process holds, apart from weights and cache."""
    from python_backend.engine.build import build_engine
    from python_backend.engine.host.cache_dir import cache_dir
    from python_backend.engine.native.packed_model import packed_dir
    from python_backend.engine.native.weights import packed_bytes

    engine = build_engine(
        EngineConfig(model, precision=precision, max_tokens_in_kv_cache=KV_TOKENS, max_sequence_tokens=1024)
    )
    for key in range(16):
        engine.add(key, GenerationRequest([10 + key] * 440, 60))
    while engine.has_work:
        engine.step()
    weights = packed_bytes(packed_dir(Path(model), precision, cache_dir() / "packed"))
    kv = KV_TOKENS * 30 * 2 * 3 * 64 * 4
    print(json.dumps({"resident": resident_bytes(), "weights": weights, "kv": kv}))


def report(console: Console, plots: Plots) -> bool:
    engine = busy_engine()
    times = {
        "the scheduler": scheduler_times_ms(engine),
        "the whole step, without the model": step_times_ms(engine),
    }
    timing = Table(f"{RUNNING} running sequences", "mean", "p50", "p99", "goal")
    means = {}
    for label, values in times.items():
        means[label] = sum(values) / len(values)
        figures = (means[label], values[len(values) // 2], values[-len(values) // 100])
        goal = f"under {STEP_GOAL_MS:g} ms" if label == "the scheduler" else ""
        timing.add_row(label, *(f"{value:.2f} ms" for value in figures), goal)
    console.print(timing)
    met = means["the scheduler"] < STEP_GOAL_MS
    table = Table("precision", "resident", "weights", "KV blocks", "the rest", f"goal: {MEMORY_GOAL_MB} MB")
    model = default_model_path(console)
    for precision in ("int8", "int4", "fp32"):
        command = [sys.executable, "-m", "benchmarks.costs", model, precision]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rest = said["resident"] - said["weights"] - said["kv"]
        is_met = rest < MEMORY_GOAL_MB * 10**6
        met &= is_met
        cells = [f"{value / 1e6:.0f} MB" for value in (*said.values(), rest)]
        table.add_row(precision, *cells, "met" if is_met else "MISSED")
    console.print(table)
    return met


if __name__ == "__main__":
    memory_worker(*sys.argv[1:])
