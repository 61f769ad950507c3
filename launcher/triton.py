"""The Triton server of a stack: its command line, its readiness, and what its log says when it fails."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import psutil
from tritonclient.grpc import (
    service_pb2,
    service_pb2_grpc,
)

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runtime import TritonRuntime

ADDRESS = "127.0.0.1"
SECRET_NAME = "inflight"
# Inference, health and metadata stay open to the router; everything else needs the secret.
RESTRICTED = "shared-memory,model-repository,logging,trace,model-config,statistics"
STUB_TIMEOUT_S = 300
EXIT_TIMEOUT_S = 60
PROBE_TIMEOUT_S = 2.0
STUB_NAME = "triton_python_backend_stub"
NO_PROXY = (("grpc.enable_http_proxy", 0),)


@dataclass(frozen=True)
class TritonServer:
    runtime: TritonRuntime
    repositories: tuple[Path, ...]
    shared_memory_prefix: str
    grpc_port: int
    metrics_port: int
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    @property
    def grpc_url(self) -> str:
        return f"{ADDRESS}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{ADDRESS}:{self.metrics_port}/metrics"

    def command(self) -> list[str]:
        return [
            str(self.runtime.server),
            *(f"--model-repository={repository}" for repository in self.repositories),
            f"--backend-directory={self.runtime.backend_dir}",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--allow-http=false",  # one request can kill the HTTP server of this Triton
            f"--grpc-address={ADDRESS}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={ADDRESS}",
            f"--metrics-port={self.metrics_port}",
            f"--grpc-restricted-protocol={RESTRICTED}:{SECRET_NAME}={self.secret}",
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}",
            f"--backend-config=python,stub-timeout-seconds={STUB_TIMEOUT_S}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        ]

    def is_ready(self, pipeline: str) -> bool:
        # A channel of its own for each probe: a reused one backs off for longer and longer between attempts.
        with grpc.insecure_channel(self.grpc_url, options=NO_PROXY) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                server = stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PROBE_TIMEOUT_S)
                model = stub.ModelReady(service_pb2.ModelReadyRequest(name=pipeline), timeout=PROBE_TIMEOUT_S)
            except grpc.RpcError:
                return False
            return bool(server.ready and model.ready)


class StubWatch:
    """Notices a model process (a stub) that died under a Triton that lives on and still calls itself ready.

    Triton collects the stubs it stops itself, so one that stays a zombie died on its own. The grace leaves
    room for someone who reloads the model instead.
    """

    def __init__(self, grace_s: float = 3.0, period_s: float = 1.0) -> None:
        self._grace_s = grace_s
        self._period_s = period_s
        self._next_look_s = 0.0
        self._dead_since_s: dict[int, float] = {}

    def find_fault(self, triton_pid: int, now_s: float) -> str | None:
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + self._period_s
        return self.judge(dead_stubs(triton_pid), now_s)

    def judge(self, dead_pids: list[int], now_s: float) -> str | None:
        self._dead_since_s = {pid: self._dead_since_s.get(pid, now_s) for pid in dead_pids}
        if any(now_s - since_s >= self._grace_s for since_s in self._dead_since_s.values()):
            return "one of its model processes died"
        return None


def dead_stubs(triton_pid: int) -> list[int]:
    dead = []
    with suppress(psutil.Error):
        for process in psutil.Process(triton_pid).children():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE and STUB_NAME.startswith(process.name()):
                    dead.append(process.pid)
    return dead
