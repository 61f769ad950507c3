"""`vllm serve` with random weights, as a user would start it, in the interpreter that has it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.stack import free_port

_START_LIMIT_S = 300.0


@contextmanager
def running_vllm(python: str, model: Path, sequence_tokens: int, precision: str) -> Iterator[tuple[str, int]]:
    """Its URL and process; the model is called by its path."""
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", str(sequence_tokens)]
    command += ["--quantization", "fp8"] if precision == "fp8" else []
    environment = {
        **os.environ,
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}", process.pid
        except BaseException:
            output.seek(0)
            print(output.read()[-6000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    limit_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit_s:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"vLLM is not ready after {_START_LIMIT_S:.0f} s")
