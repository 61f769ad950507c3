"""Starts the whole stack as a user would, `inflight up` in a process of its own, and stops it again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.toml import to_toml

_START_LIMIT_S = 600.0
_STOP_LIMIT_S = 60.0
_HURRY_AFTER_S = 1.2  # the launcher takes what comes sooner for the same Ctrl-C


@dataclass(frozen=True)
class RunningStack:
    url: str
    triton_metrics_url: str
    model: str
    process: subprocess.Popen[str]
    output_file: Path
    state_dir: Path
    grpc_url: str = ""  # the router's, for Triton's clients

    @property
    def triton_grpc_url(self) -> str:
        """A Unix socket, for the user who started the stack."""
        return self.triton_grpc_urls[0]

    @property
    def triton_grpc_urls(self) -> list[str]:
        """Of all its Triton servers, as it announced them."""
        return re.findall(r"^  (?:Triton|and) +(\S+)  \(gRPC\)", self.output(), re.MULTILINE)

    @property
    def triton_metrics_urls(self) -> list[str]:
        return re.findall(r"^  (?:Triton|and) +\S+  \(gRPC\), (\S+)", self.output(), re.MULTILINE)

    def output(self) -> str:
        return self.output_file.read_text(errors="replace")  # its last character may be half written

    @property
    def logs(self) -> Path:
        """Of this run; the name of the folder is that of the run."""
        (folder,) = re.findall(r"^ *logs +(\S+)$", self.output(), re.MULTILINE)
        return Path(folder)

    def gauge(self, family: str, **labels: str) -> float:
        """One value from Triton's metrics port."""
        with urllib.request.urlopen(self.triton_metrics_url, timeout=10) as response:
            text = response.read().decode()
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        for line in text.splitlines():
            if line.startswith(family) and all(label in line for label in wanted):
                return float(line.rsplit(" ", 1)[1])
        raise LookupError(f"{family} {labels} is not among the metrics")

    def processes(self, word: str = "") -> list[psutil.Process]:
        """All below the launcher that live, and have the word in their command lines."""
        return processes_below(psutil.Process(self.process.pid), word)

    def used_blocks(self) -> float:
        return self.gauge("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")

    def stop(self) -> int:
        """Ctrl-C, as a user would; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(_STOP_LIMIT_S)

    def end(self) -> None:
        """When nobody needs it any more: with a second Ctrl-C Triton does not unload its models."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_HURRY_AFTER_S)
                    return
                self.process.send_signal(signal.SIGINT)
                self.process.wait(_STOP_LIMIT_S)
        finally:
            self.process.kill()
            self.process.wait()


def processes_below(process: psutil.Process, word: str = "") -> list[psutil.Process]:
    family = process.children(recursive=True)
    return [each for each in family if (words := words_of(each)) and word in " ".join(words)]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none of one that has ended, which it may do at any time."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


_held: list[socket.socket] = []


def free_port() -> int:
    """One that nobody else is given while this process lives; servers, which reuse addresses, can have it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    port: int = held.getsockname()[1]
    return port


@contextmanager
def running_stack(
    engine: Mapping[str, str] | None = None,
    model: str | None = None,
    data_dir: Path | None = None,
    router_settings: Mapping[str, Any] | None = None,
    triton_servers: int = 1,
    embeddings: bool = True,
    drain_timeout_s: float = 30.0,
    prefill_servers: int = 0,
) -> Iterator[RunningStack]:
    """A ready stack with the given engine parameters, on free ports."""
    with tempfile.TemporaryDirectory(prefix="inflight-") as folder:
        stack = start_stack(
            Path(folder),
            engine or {},
            model,
            data_dir,
            router_settings,
            triton_servers,
            embeddings,
            drain_timeout_s,
            prefill_servers,
        )
        try:
            wait_until_ready(stack)
            yield stack
        finally:
            stack.end()


def start_stack(
    folder: Path,
    engine: Mapping[str, str],
    model: str | None = None,
    data_dir: Path | None = None,
    router_settings: Mapping[str, Any] | None = None,
    triton_servers: int = 1,
    embeddings: bool = True,
    drain_timeout_s: float = 30.0,
    prefill_servers: int = 0,
    checkout: Path | None = None,
) -> RunningStack:
    """With `checkout`, the one that is installed there is run instead of this."""
    port, metrics_port, kserve_port = free_port(), free_port(), free_port()
    config = folder / "inflight.toml"
    # Not in the data directory: the keys and the usage of whoever runs this are none of its business.
    router = {"state_dir": str(folder / "state"), **(router_settings or {})}
    stack = {"drain_timeout_s": drain_timeout_s}
    config.write_text(to_toml({"stack": stack, "engine": engine, "router": router}))
    python = sys.executable if checkout is None else str(checkout / ".venv/bin/python")
    command = [python, "-m", "launcher", "up", "--config", str(config), "--port", str(port)]
    command += ["--triton-metrics-port", str(metrics_port), "--grpc-port", str(kserve_port)]
    command += ["--triton-servers", str(triton_servers), "--prefill-servers", str(prefill_servers)]
    command += ["--model", model] if model else []
    command += ["--data-dir", str(data_dir)] if data_dir else []
    command += [] if embeddings else ["--embeddings", ""]
    output_file = folder / "output.txt"
    with output_file.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            cwd=checkout,
        )
    return RunningStack(
        url=f"http://127.0.0.1:{port}",
        triton_metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
        model=Path(model).name.lower() if model else "smollm2-135m-instruct",
        process=process,
        output_file=output_file,
        state_dir=Path(router["state_dir"]),
        grpc_url=f"127.0.0.1:{kserve_port}",
    )


def wait_until_ready(stack: RunningStack) -> None:
    """Where it does not become ready, how far it came is printed, whoever's patience has ended."""
    deadline_s = time.monotonic() + _START_LIMIT_S
    try:
        # The launcher's own word counts, its last line: the addresses stand before it.
        while "Ctrl-C finishes the requests" not in stack.output():
            if stack.process.poll() is not None:
                raise RuntimeError(f"the stack ended with {stack.process.returncode}:\n{stack.output()}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the stack is not ready after {_START_LIMIT_S} s")
            time.sleep(0.1)
    except BaseException:
        if stack.process.poll() is None:
            print(_how_far(stack), file=sys.stderr)
        raise


def _how_far(stack: RunningStack) -> str:
    """Its words, its processes, and the ends of the logs that they write."""
    told, logs = [stack.output()], set[str]()
    for process in stack.processes():
        with suppress(psutil.Error, OSError):
            used, words = process.cpu_times(), " ".join(words_of(process))
            told.append(f"{process.pid} {process.status()} {used.user + used.system:.1f} s {words[:150]}")
            logs.add(os.readlink(f"/proc/{process.pid}/fd/1"))
    for log in sorted(each for each in logs if each.endswith(".log")):
        told += ["", log, *Path(log).read_text(errors="replace").splitlines()[-40:]]
    return "\n".join(told)
