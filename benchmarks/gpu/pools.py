"""`python -m benchmarks.gpu.pools --vllm PYTHON`: prompts and answers in two pools of vLLM on one GPU.

The same questions are put to one replica that does both and to two that each do one half, with the same
weights in fp32, greedily: the texts are to be the same. The router divides as many as the pools' load allows.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import aiohttp

from benchmarks.stack import RunningStack, running_stack
from benchmarks.text_checkpoint import llama_config, write_random_llama
from launcher.packaging.runtimes.environment import note_environment

CONFIG = llama_config(8, 1024, 2816, 16, 8, 8192)
MEMORY_SHARE = 0.3  # of the GPU, for each replica
PROMPT_TOKENS, NEW_TOKENS = 900, 32


def prompt(number: int) -> str:
    return " ".join(f"w{5 + (place * 7 + number * 131) % 8000}" for place in range(PROMPT_TOKENS))


async def answers(stack: RunningStack, count: int) -> list[str]:
    async with aiohttp.ClientSession(stack.url) as session:

        async def ask(number: int) -> str:
            body = {"model": stack.model, "prompt": prompt(number), "max_tokens": NEW_TOKENS}
            async with session.post("/v1/completions", json={**body, "temperature": 0}) as response:
                answered = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"question {number}: {answered}")
                return str(answered["choices"][0]["text"])

        await ask(count)  # a start of kernels
        return list(await asyncio.gather(*(ask(number) for number in range(count))))


def computed_elsewhere(stack: RunningStack) -> dict[str, float]:
    with urllib.request.urlopen(f"{stack.url}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = re.findall(r'^inflight_prompts_elsewhere_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    return {outcome: float(value) for outcome, value in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True, help="a Python that has vLLM")
    parser.add_argument("--requests", type=int, default=24, help="all at once")
    parser.add_argument("--connector", default="files", choices=("files", "nixl"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        model = write_random_llama(Path(folder) / "small", CONFIG)
        data = Path(folder) / "data"
        print(note_environment("vllm", Path(asked.vllm), data / "runtimes"))
        engine = {
            "inflight_runtime": "vllm",
            "inflight_precision": "fp32",
            "inflight_max_sequence_tokens": "2048",
            "kv_cache_free_gpu_mem_fraction": str(MEMORY_SHARE),
        }
        with running_stack(engine, str(model), data, embeddings=False) as stack:
            alone = asyncio.run(answers(stack, asked.requests))
        engine["inflight_kv_connector"] = asked.connector
        with running_stack(
            engine, str(model), data, triton_servers=2, embeddings=False, prefill_servers=1
        ) as stack:
            time.sleep(2)  # the router asks engines once a second what they are there for
            apart = asyncio.run(answers(stack, asked.requests))
            elsewhere = computed_elsewhere(stack)
    same = sum(one == other for one, other in zip(alone, apart, strict=True))
    print(f"{same} of {asked.requests} texts are the same, {len(set(alone))} of them differ from each other")
    print(f"prompts computed elsewhere: {elsewhere}")
    was_divided = elsewhere.get("computed", 0) > asked.requests / 4 and not elsewhere.get("lost")
    return 0 if same == asked.requests and was_divided else 1


if __name__ == "__main__":
    sys.exit(main())
