"""What choosing tokens costs on the GPU: `python -m benchmarks.gpu.sampling`, in microseconds a step."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import torch

from python_backend.engine.cuda.pinned_memory import Staging
from python_backend.engine.cuda.sampler import SampledRow, Sampler
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.sequence import Sequence

VOCABULARY = 128_256
ROWS = (1, 32, 256, 512)
STEPS = 20
KINDS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(top_p=1.0, seed=1),
    "top_p": SamplingParams(top_p=0.9, seed=1),
    "top_k": SamplingParams(top_k=50, seed=1),
    "top_k, top_p, penalties": SamplingParams(top_k=50, top_p=0.9, frequency_penalty=0.5, seed=1),
}


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own is untyped


def measure(sampling: SamplingParams, base: torch.Tensor) -> tuple[float, float]:
    """Microseconds of the GPU and of the host for one step, half of the steps taking less."""
    rows = len(base)
    device = base.device
    sampler = Sampler(VOCABULARY, rows, device)
    staging = Staging(device, 1 << 20)
    request = GenerationRequest(list(range(64)), STEPS, sampling=sampling)
    sequences = [Sequence(0, 0, request, STEPS, index=index) for index in range(rows)]
    for slot, sequence in enumerate(sequences):
        sampler.begin(slot, sequence)
    last_tokens = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    events = [(_event(), _event()) for _ in range(STEPS)]
    host_us = []
    filler = torch.zeros(6144, 6144, device=device)
    for step, (start, end) in enumerate(events):
        logits = base.clone()
        staging.begin_step()
        slots = staging.upload(np.arange(rows, dtype=np.int32))
        sampled = [SampledRow(sequence, slot, step) for slot, sequence in enumerate(sequences)]
        # Keeps the GPU busy while the host prepares the step: only the GPU's time lies between the events.
        filler = torch.mm(filler, filler)
        start.record()
        before_ns = time.perf_counter_ns()
        sampler.choose(logits, sampled, slots, last_tokens, staging)
        host_us.append((time.perf_counter_ns() - before_ns) / 1e3)
        end.record()
        torch.cuda.synchronize()
    gpu_us = [start.elapsed_time(end) * 1e3 for start, end in events]
    # The first steps compile, and tell the device about the sequences.
    return statistics.median(gpu_us[STEPS // 4 :]), statistics.median(host_us[STEPS // 4 :])


def main() -> int:
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    # About as uneven as a language model's: a few likely tokens before a long tail.
    generator = torch.Generator(device).manual_seed(0)
    everything = torch.randn(max(ROWS), VOCABULARY, device=device, generator=generator) * 2.5
    print(f"{'':>24}  {'rows':>5}  {'GPU us':>8}  {'host us':>8}")
    with torch.inference_mode():
        for name, sampling in KINDS.items():
            for rows in ROWS:
                gpu_us, host_us = measure(sampling, everything[:rows])
                print(f"{name:>24}  {rows:>5}  {gpu_us:8.0f}  {host_us:8.0f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
