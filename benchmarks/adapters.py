"""`python -m benchmarks.adapters`: a batch whose rows have eight LoRA adapters, beside one without any.

Random weights: SmolLM2-135M's shape on the CPU, Llama-3.1-8B's on a GPU (`--device cuda`), and random
adapters on all seven products of every layer. Runs with and without take turns in one process, so that what
else the machine does meets both; the ratio is of medians. Exit status 1: less than 80 %.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.llama_8b import CONFIG as LLAMA_8B
from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.safetensors_file import random_fill, write_safetensors
from benchmarks.text_checkpoint import SMOLLM2_135M, write_random_llama
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from python_backend.wire.parameters import device_defaults

ADAPTERS = 8
GOAL = 0.8
BATCHES = {"cpu": (8, 16), "cuda": (8, 32, 128, 256)}
NEW_TOKENS = {"cpu": 24, "cuda": 128}
PROMPT_TOKENS = {"cpu": 32, "cuda": 128}


def write_random_adapter(directory: Path, config: Mapping[str, Any], rank: int) -> None:
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank})
    )
    hidden, wide, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = size * config["num_attention_heads"], size * config["num_key_value_heads"]
    products = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, wide),
        "mlp.up_proj": (hidden, wide),
        "mlp.down_proj": (wide, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in products.items():
            place = f"base_model.model.model.layers.{layer}.{name}.lora"
            shapes |= {f"{place}_A.weight": (rank, inputs), f"{place}_B.weight": (outputs, rank)}
    write_safetensors(directory / "adapter_model.safetensors", shapes, random_fill())


def build(device: str, folder: Path, rank: int, threads: int | None = None) -> Engine:
    """With its adapters in `adapters` of the folder."""
    is_gpu = device == "cuda"
    config = LLAMA_8B if is_gpu else SMOLLM2_135M
    for number in range(ADAPTERS):
        write_random_adapter(folder / "adapters" / str(number), config, rank)
    model = folder / "model"
    settings = device_defaults(device)
    return build_engine(
        EngineConfig(
            str(write_checkpoint(model) if is_gpu else write_random_llama(model, config)),
            device=device,
            precision=settings.precision,
            random_weights=is_gpu,
            max_batch_size=settings.max_batch_size,
            max_step_tokens=settings.max_step_tokens,
            tokens_per_block=settings.tokens_per_block,
            max_sequence_tokens=2048,
            max_tokens_in_kv_cache=None if is_gpu else 16384,
            packed_cache_dir=str(folder / "packed"),
            threads=threads,
            enable_kv_cache_reuse=False,
            free_memory_fraction=0.8,
            adapters_dir=str(folder / "adapters"),
            max_adapters=ADAPTERS,
            max_adapter_rank=rank,
        )
    )


def run(
    engine: Engine, batch: int, adapted: bool, device: str, seed: int, clock: Callable[[], float]
) -> float:
    """Tokens a second of the answers, from when all of them have begun."""
    dice = random.Random(seed)
    for key in range(batch):
        prompt = [dice.randrange(8000) for _ in range(PROMPT_TOKENS[device])]
        adapter = str(key % ADAPTERS) if adapted else ""
        engine.add(key, GenerationRequest(prompt, NEW_TOKENS[device], adapter=adapter))
    begun: set[int] = set()
    began_s, tokens = 0.0, 0
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            tokens += len(event.token_ids) if began_s else 0
            begun.add(event.key)
        if not began_s and len(begun) == batch:
            began_s = clock()
    return tokens / (clock() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batches", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="one thread, and the time that it had a processor: where others use the machine",
    )
    asked = parser.parse_args()
    batches = [int(each) for each in asked.batches.split(",")] if asked.batches else BATCHES[asked.device]
    worst, threads = 1.0, 1 if asked.processor_time else asked.threads
    clock = time.process_time if asked.processor_time else time.perf_counter
    with tempfile.TemporaryDirectory(prefix="inflight-adapters-") as folder:
        engine = build(asked.device, Path(folder), asked.rank, threads)
        print(f"{ADAPTERS} adapters of rank {asked.rank} on all products, {asked.device}")
        print("batch   without    with 8   ratio")
        for batch in batches:
            for adapted in (False, True):
                run(engine, batch, adapted, asked.device, -1, clock)  # loads adapters, records steps
            rates: dict[bool, list[float]] = {False: [], True: []}
            for repeat in range(asked.repeats):
                for adapted in (False, True):
                    rates[adapted].append(run(engine, batch, adapted, asked.device, repeat, clock))
            without, with_all = statistics.median(rates[False]), statistics.median(rates[True])
            worst = min(worst, with_all / without)
            print(f"{batch:5} {without:9,.0f} {with_all:9,.0f} {with_all / without:7.2f}", flush=True)
        gauges = engine.gauges()
        print(f"{gauges.adapters} adapters are loaded, {gauges.adapter_loads} loads")
    return 0 if worst >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
