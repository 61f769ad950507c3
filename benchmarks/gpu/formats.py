"""`python -m benchmarks.gpu.formats`: quantised checkpoints of the 8B shape, ours beside vLLM on them.

For each format a checkpoint of random levels is written, our engine serves it at each number of requests,
and then vLLM does, where `--vllm-python` names a Python that has it. A figure is output tokens a second of
all requests sent at once, for 256 new ones each; both are warmed up by a run of the same size. `bf16` is the
unquantised model.
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
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.gpu.quantized_llama_8b import FORMATS, write_quantized

NEW_TOKENS = 256
_VOCABULARY = 128000
# Requests sent at once, and the tokens of each one's prompt.
Size = tuple[int, int]


def sizes_of(text: str) -> list[Size]:
    return [
        (int(requests), int(prompt or 512))
        for requests, _, prompt in (each.partition("x") for each in text.split(","))
    ]


def words_of(sizes: list[Size]) -> str:
    return ",".join(f"{requests}x{prompt}" for requests, prompt in sizes)


def prompts(size: Size, seed: object) -> list[list[int]]:
    dice = random.Random(f"{size} {seed}")
    return [[dice.randrange(_VOCABULARY) for _ in range(size[1])] for _ in range(size[0])]


def of_our_engine(checkpoint: Path, sizes: list[Size], is_random: bool) -> list[float]:
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
            max_batch_size=max(requests for requests, _ in sizes),
            max_step_tokens=defaults.max_step_tokens,
            tokens_per_block=defaults.tokens_per_block,
            max_sequence_tokens=_room(sizes),
        )
    )
    print(f"  ours is ready after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)

    def answered(asked: list[list[int]]) -> int:
        for key, prompt in enumerate(asked):
            engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
        tokens = 0
        while engine.has_work:
            for event in engine.step():
                assert event.error is None, event.error
                tokens += len(event.token_ids)
        return tokens

    return [tokens_per_s(answered, size) for size in sizes]


def of_vllm(checkpoint: Path, sizes: list[Size], is_random: bool) -> list[float]:
    """In vLLM's own Python: nothing of this project is needed but this file's neighbours."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(checkpoint),
        dtype="bfloat16",
        load_format="dummy" if is_random else "auto",
        max_model_len=_room(sizes),
        max_num_seqs=max(requests for requests, _ in sizes),
        enable_prefix_caching=True,
    )
    settings = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)

    def answered(asked: list[list[int]]) -> int:
        found = llm.generate([{"prompt_token_ids": prompt} for prompt in asked], settings, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in found)

    return [tokens_per_s(answered, size) for size in sizes]


def _room(sizes: list[Size]) -> int:
    return max(2048, 2 * max(prompt for _, prompt in sizes))


def tokens_per_s(answered: Callable[[list[list[int]]], int], size: Size) -> float:
    """Of the second of two runs, each with prompts of its own: nothing is found in a prefix cache."""
    answered(prompts(size, "warm-up"))
    asked = prompts(size, "counted")
    begin = time.perf_counter()
    tokens = answered(asked)
    assert tokens == size[0] * NEW_TOKENS, tokens
    return tokens / (time.perf_counter() - begin)


def measured(python: str, runtime: str, checkpoint: Path, sizes: list[Size], is_random: bool) -> list[float]:
    """In a process of its own, which leaves the GPU empty."""
    environment = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
    command = [python, "-W", "ignore", "-m", "benchmarks.gpu.formats", "--measure", runtime]
    command += ["--checkpoint", str(checkpoint), "--sizes", words_of(sizes)]
    command += ["--random"] if is_random else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        print(f"  {runtime} failed with {done.returncode}", flush=True)
        return []
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(
    name: str, checkpoint: Path, asked: argparse.Namespace, sizes: list[Size]
) -> list[dict[str, object]]:
    is_random = name == "bf16"
    ours = measured(sys.executable, "ours", checkpoint, sizes, is_random)
    theirs = measured(asked.vllm_python, "vllm", checkpoint, sizes, is_random) if asked.vllm_python else []
    rows: list[dict[str, object]] = []
    for (requests, prompt), mine, other in zip_longest(sizes, ours, theirs):
        beside = f"{other:8,.0f} {mine / other:6.2f}" if mine and other else "       -      -"
        print(f"{name:12} {requests:8} x {prompt:<5} {mine or 0:10,.0f} {beside}", flush=True)
        rows.append({"format": name, "requests": requests, "prompt": prompt, "ours": mine, "vllm": other})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = f"of bf16, {', '.join(FORMATS)}"
    parser.add_argument("--formats", default="w4a16,awq,fp8,fp8-blocks", help=known)
    parser.add_argument("--sizes", default="1,32,256", help="requests[xprompt] at once, comma-separated")
    parser.add_argument("--vllm-python", help="a Python that has vLLM")
    parser.add_argument("--json", type=Path, help="also write every figure there")
    parser.add_argument("--measure", choices=("ours", "vllm"), help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--random", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sizes = sizes_of(asked.sizes)
    if asked.measure:
        measure = of_our_engine if asked.measure == "ours" else of_vllm
        print(json.dumps(measure(asked.checkpoint, sizes, asked.random)))
        return
    found = []
    print("format       requests x prompt ours tok/s     vLLM  ratio", flush=True)
    for name in asked.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            if name == "bf16":
                checkpoint = write_checkpoint(Path(folder))
            else:
                checkpoint = write_quantized(Path(folder), name)
            found += compare(name, checkpoint, asked, sizes)
            if asked.json:
                asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
