"""A router of its own in front of a stack's Triton, for tests that need keys or other settings."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.stack import RunningStack, free_port
from tests.pace import is_over, patience

START_LIMIT_S = 90.0


@contextmanager
def router_beside(
    stack: RunningStack, checkpoint: Path, data_dir: Path, settings: str = ""
) -> Iterator[tuple[int, int]]:
    """Its HTTP and gRPC ports; keys that are in the data directory count."""
    port, grpc_port = free_port(), free_port()
    file = data_dir / "router.toml"
    servers = ", ".join(f'{{ url = "{url}" }}' for url in stack.triton_grpc_urls)
    file.write_text(
        f"port = {port}\ngrpc_port = {grpc_port}\ntriton_servers = [{servers}]\n"
        f'data_dir = "{data_dir}"\n{settings}\n'
        f'[[models]]\nname = "{stack.model}"\ncheckpoint_dir = "{checkpoint}"\n'
    )
    router = subprocess.Popen([sys.executable, "-m", "router", "--settings", str(file)])
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/v2/health/ready")
        yield port, grpc_port
    finally:
        router.send_signal(signal.SIGTERM)
        assert router.wait(patience(60)) == 0


def _wait_until_ready(url: str) -> None:
    began_s = time.monotonic()
    while not is_over(began_s, START_LIMIT_S):
        try:
            if httpx.get(url, trust_env=False, verify=False, timeout=patience(30)).status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")
