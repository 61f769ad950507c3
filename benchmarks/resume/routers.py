"""Two routers with one store and one Redis in front of a stack's Triton; one of them may be killed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.stack import RunningStack, free_port

_START_LIMIT_S = 120.0


@dataclass
class Router:
    settings: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        command = [sys.executable, "-m", "router", "--settings", str(self.settings)]
        with self.settings.with_suffix(".log").open("ab") as output:
            self.process = subprocess.Popen(command, stderr=output)

    def wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline_s:
            try:
                if httpx.get(f"{self.url}/v2/health/ready", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"{self.url} does not answer")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Routers:
    data_dir: Path
    both: list[Router] = field(default_factory=list)

    def bills(self) -> dict[str, int]:
        """Completion tokens by the id of each request that was billed; there is one row for each bill."""
        with sqlite3.connect(self.data_dir / "store.db") as store:
            rows = store.execute("SELECT request_id, completion_tokens FROM usage WHERE outcome = 'finished'")
            return dict(rows.fetchall())


@contextmanager
def running_routers(
    stack: RunningStack, checkpoint: Path, data_dir: Path, redis_url: str
) -> Iterator[Routers]:
    with ExitStack() as closing:
        routers = Routers(data_dir)
        for number in range(2):
            port, file = free_port(), data_dir / f"router-{number}.toml"
            file.write_text(
                f'port = {port}\ndata_dir = "{data_dir}"\nredis_url = "{redis_url}"\n'
                f'triton_servers = [{{ url = "{stack.triton_grpc_url}" }}]\n'
                f'[[models]]\nname = "{stack.model}"\ncheckpoint_dir = "{checkpoint}"\n'
            )
            router = Router(file, port)
            closing.callback(router.kill)
            router.begin()
            routers.both.append(router)
        for router in routers.both:
            router.wait_until_ready()
        yield routers
