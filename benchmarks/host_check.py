"""Does the stack run on this machine? Starts it with a small random model and compares with transformers.

For hosts where the tests cannot run (another architecture, no registry):
python -m benchmarks.host_check DIRECTORY_WITH_A_TOKENIZER [PYTHON_THAT_HAS_TRANSFORMERS]
"""

from __future__ import annotations

import asyncio
import json
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numba

from benchmarks.stack import RunningStack, running_stack
from loadtest.replay.plan import PlannedRequest
from loadtest.replay.sender import Target, send


def complete(stack: RunningStack, prompt: str) -> str:
    body = {"model": stack.model, "prompt": prompt, "max_tokens": 32, "temperature": 0}
    request = urllib.request.Request(
        f"{stack.url}/v1/completions",
        json.dumps({**body, "ignore_eos": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def main(tokenizer_dir: str, reference_python: str = sys.executable) -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}, numba {numba.__version__}")
    regions_before = set(Path("/dev/shm").glob("triton_python_backend_*"))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "tiny-random-llama")
        directory.mkdir()
        reference = Path(__file__).with_name("reference.py")
        subprocess.run([reference_python, reference, tokenizer_dir, directory], check=True)
        wanted: dict[str, str] = json.loads((directory / "greedy.json").read_text())
        start_s = time.perf_counter()
        # In fp32, for the texts are to be equal.
        engine = {"inflight_precision": "fp32"}
        with running_stack(engine, str(directory), Path(folder, "data")) as stack:
            print(f"ready after {time.perf_counter() - start_s:.1f} s")
            answers = {prompt: complete(stack, prompt) for prompt in wanted}
            plan = [PlannedRequest(0.0, next(iter(wanted)), 200, "load") for _ in range(64)]
            load = asyncio.run(send(Target(stack.url, stack.model, tells_tier=False), plan))
            exit_code = stack.stop()
    left = set(Path("/dev/shm").glob("triton_python_backend_*")) - regions_before
    equal = sum(answers[prompt] == wanted[prompt] for prompt in wanted)
    print(f"greedy texts equal to transformers': {equal} of {len(wanted)}")
    print(f"64 streams of 200 tokens: {load.tokens_per_s:,.0f} tokens/s, {len(load.errors)} errors")
    print(f"exit code {exit_code}, shared-memory regions left: {len(left)}")
    if answers != wanted or load.errors or exit_code or left:
        sys.exit("the stack does not work here")
    print("the stack works here")


if __name__ == "__main__":
    main(*sys.argv[1:])
