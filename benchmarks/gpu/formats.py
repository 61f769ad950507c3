"""`python -m benchmarks.gpu.formats`: quantised checkpoints of the 8B shape, ours beside vLLM on them.

For each format a checkpoint of random levels is written, our engine serves it at each number of requests,
and then vLLM does, where `--vllm-python` names a Python that has it. A figure is output tokens a second of
all requests sent at once, 512 tokens each, for 256 new ones; both are warmed up by a run of the same size.
`--bf16` adds the unquantised model as a yardstick.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.gpu.quantized_llama_8b import FORMATS, write_quantized

PROMPT_TOKENS, NEW_TOKENS = 512, 256
_VOCABULARY = 128000


def prompts(requests: int, seed: object) -> list[list[int]]:
    dice = random.Random(f"{requests} {seed}")
    return [[dice.randrange(_VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(requests)]


def of_our_engine(checkpoint: Path, sizes: list[int], is_random: bool) -> dict[int, float]:
    from python_backend.engine.build import build_engine
    from python_backend.engine.config import EngineConfig
    from python_backend.engine.request import GenerationRequest
    from python_backend.wire.parameters import device_defaults

    defaults = device_defaults("cuda")
    begin = time.perf_counter()
    engine = build_engine(
        EngineConfig(
            str(checkpoint),
            device="cuda",
            precision="bf16",
            random_weights=is_random,
            max_batch_size=max(sizes),
            max_step_tokens=defaults.max_step_tokens,
            tokens_per_block=defaults.tokens_per_block,
            max_sequence_tokens=2048,
        )
    )
    print(f"  ours is ready after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    rates = {}
    for size in sizes:
        for is_counted in (False, True):
            for key, prompt in enumerate(prompts(size, is_counted)):
                engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
            begin, tokens = time.perf_counter(), 0
            while engine.has_work:
                for event in engine.step():
                    assert event.error is None, event.error
                    tokens += len(event.token_ids)
            assert tokens == size * NEW_TOKENS, tokens
            rates[size] = tokens / (time.perf_counter() - begin)
    return rates


def of_vllm(checkpoint: Path, sizes: list[int], is_random: bool) -> dict[int, float]:
    """In vLLM's own Python: nothing of this project is needed but this file's neighbours."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(checkpoint),
        dtype="bfloat16",
        load_format="dummy" if is_random else "auto",
        max_model_len=2048,
        max_num_seqs=max(sizes),
        enable_prefix_caching=True,
    )
    settings = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    rates = {}
    for size in sizes:
        for is_counted in (False, True):
            asked = [{"prompt_token_ids": prompt} for prompt in prompts(size, is_counted)]
            begin = time.perf_counter()
            found = llm.generate(asked, settings, use_tqdm=False)
            tokens = sum(len(answer.outputs[0].token_ids) for answer in found)
            assert tokens == size * NEW_TOKENS, tokens
            rates[size] = tokens / (time.perf_counter() - begin)
    return rates


def measured(
    python: str, runtime: str, checkpoint: Path, sizes: list[int], is_random: bool
) -> dict[int, float]:
    """In a process of its own, which leaves the GPU empty."""
    environment = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
    command = [python, "-W", "ignore", "-m", "benchmarks.gpu.formats", "--measure", runtime]
    command += ["--checkpoint", str(checkpoint), "--sizes", ",".join(map(str, sizes))]
    command += ["--random"] if is_random else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        print(f"  {runtime} failed with {done.returncode}", flush=True)
        return {}
    return {int(size): rate for size, rate in json.loads(done.stdout.splitlines()[-1]).items()}


def compare(
    name: str, checkpoint: Path, asked: argparse.Namespace, sizes: list[int]
) -> list[dict[str, object]]:
    is_random = name == "bf16"
    ours = measured(sys.executable, "ours", checkpoint, sizes, is_random)
    theirs = measured(asked.vllm_python, "vllm", checkpoint, sizes, is_random) if asked.vllm_python else {}
    for size in sizes:
        mine, other = ours.get(size, 0.0), theirs.get(size)
        beside = f"{other:8,.0f} {mine / other:6.2f}" if other else "       -      -"
        print(f"{name:12} {size:8} {mine:10,.0f} {beside}", flush=True)
    return [
        {"format": name, "requests": size, "ours": ours.get(size), "vllm": theirs.get(size)} for size in sizes
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--formats", default="w4a16,awq,fp8,fp8-blocks", help=f"of {', '.join(FORMATS)}")
    parser.add_argument("--sizes", default="1,32,256", help="requests at once, comma-separated")
    parser.add_argument("--vllm-python", help="a Python that has vLLM")
    parser.add_argument("--bf16", action="store_true", help="the unquantised model, too")
    parser.add_argument("--json", type=Path, help="also write every figure there")
    parser.add_argument("--measure", choices=("ours", "vllm"), help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--random", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.sizes.split(",")]
    if asked.measure:
        measure = of_our_engine if asked.measure == "ours" else of_vllm
        print(json.dumps(measure(asked.checkpoint, sizes, asked.random)))
        return
    found = []
    print("format       requests ours tok/s     vLLM  ratio", flush=True)
    for name in [*(["bf16"] if asked.bf16 else []), *asked.formats.split(",")]:
        with tempfile.TemporaryDirectory() as folder:
            write = (
                write_checkpoint if name == "bf16" else lambda place, name=name: write_quantized(place, name)
            )
            found += compare(name, write(Path(folder)), asked, sizes)
    if asked.json:
        asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
