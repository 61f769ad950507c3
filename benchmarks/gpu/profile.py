"""`python -m benchmarks.gpu.profile`: where each microsecond of a step goes, by kernel, and on the host."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.throughput import add_engine_arguments, build
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest

STEPS = 12
# What a kernel does, by a part of its name; the first that fits.
KINDS = (
    ("_decode", "attention, decoding"),
    ("_reduce", "attention, decoding"),
    ("_prefill", "attention, prompts"),
    ("_add_rms_norm", "residual and norm"),
    ("_turn_and_store", "rope and cache"),
    ("_activate_multiply", "activation"),
    ("_matvec", "products"),
    ("_multiply", "products"),
    ("gemm", "products"),
    ("cutlass", "products"),
    ("nvjet", "products"),
    ("splitK", "products"),
)


def kind_of(name: str) -> str:
    return next((kind for part, kind in KINDS if part in name), name[:60])


def fill(engine: Engine, requests: int, prompt_tokens: int, new_tokens: int) -> None:
    dice = random.Random(f"{requests} {prompt_tokens}")
    for key in range(requests):
        prompt = [dice.randrange(128000) for _ in range(prompt_tokens)]
        engine.add(key, GenerationRequest(prompt, new_tokens))


def until_all_decode(engine: Engine) -> None:
    while engine.gauges().context or engine.gauges().waiting or not engine.gauges().scheduled:
        engine.step()


def measure(engine: Engine, title: str, steps: int) -> None:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        engine.step()
    torch.cuda.synchronize()
    plain_ms = (time.perf_counter() - begin) / steps * 1000
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()
    by_kind: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    events: Any = profiler.events()
    spans = []
    for event in events:
        if event.device_type == DeviceType.CUDA:
            counted = by_kind[kind_of(event.name)]
            counted[0] += 1
            counted[1] += event.device_time_total
            spans.append((event.time_range.start, event.time_range.end))
    busy_us = sum(us for _, us in by_kind.values()) / steps
    window_us = (max(end for _, end in spans) - min(start for start, _ in spans)) / steps
    print(
        f"\n{title}: {plain_ms:.3f} ms a step; profiled {window_us / 1000:.3f} ms, "
        f"of it kernels {busy_us / 1000:.3f} ms"
    )
    for kind, (count, us) in sorted(by_kind.items(), key=lambda item: -item[1][1])[:12]:
        print(f"  {us / steps:9.1f} us {us / steps / busy_us:6.1%} {count / steps:6.1f} launches  {kind}")


def host(engine: Engine, title: str, steps: int) -> None:
    """Where the engine's thread spends a step."""
    import cProfile
    import pstats

    recorder = cProfile.Profile()
    recorder.enable()
    for _ in range(steps):
        engine.step()
    recorder.disable()
    print(f"\nhost, {title}")
    pstats.Stats(recorder).sort_stats("cumulative").print_stats(28)


def drain(engine: Engine) -> None:
    for key in range(1024):
        engine.cancel(key)
    while engine.has_work:
        engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_engine_arguments(parser)
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--prompts", default="512,4096", help="lengths of prompts whose steps are profiled")
    parser.add_argument("--host", action="store_true", help="profile the engine's Python code too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, torch.inference_mode():
        engine = build(arguments, Path(directory))
        for batch in map(int, arguments.batches.split(",")):
            fill(engine, batch, 512, 256)
            until_all_decode(engine)
            for _ in range(100):
                engine.step()
            measure(engine, f"decoding, batch {batch}", STEPS)
            if arguments.host:
                host(engine, f"decoding, batch {batch}", STEPS)
            drain(engine)
        for length in map(int, arguments.prompts.split(",")):
            fill(engine, 300 * 512 // length, length, 256)
            for _ in range(3):
                engine.step()
            measure(engine, f"prompts of {length}", 4)
            if arguments.host:
                host(engine, f"prompts of {length}", 3)
            drain(engine)


if __name__ == "__main__":
    main()
