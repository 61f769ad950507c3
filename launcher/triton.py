"""The Triton server of a stack: its command line, its readiness, and what its log says when it fails."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import psutil
from tritonclient.grpc import (
    service_pb2,
    service_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.mending import ModelMender
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

    def load(self, model: str) -> None:
        """Loads a model once more; a process of it that died is replaced. Raises OSError."""
        secret = ((f"triton-grpc-protocol-{SECRET_NAME}", self.secret),)
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        with grpc.insecure_channel(self.grpc_url, options=NO_PROXY) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                stub.RepositoryModelLoad(request, timeout=STUB_TIMEOUT_S, metadata=secret)
            except grpc.RpcError as error:
                call: Any = error
                raise OSError(call.details()) from None


class StubWatch:
    """Notices a model process (a stub) that died under a Triton that lives on and still calls itself ready.

    Triton collects the stubs it stops itself, so one that stays a zombie died on its own. The grace leaves
    room for someone who reloads the model instead. Models that have a mender, by name, are left to it.
    """

    def __init__(
        self,
        grace_s: float = 3.0,
        period_s: float = 1.0,
        menders: Mapping[str, ModelMender] | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._menders = menders or {}
        self._models: dict[int, str] = {}
        self._period_s = period_s
        self._next_look_s = 0.0
        self._dead_since_s: dict[int, float] = {}

    def find_fault(self, triton_pid: int, now_s: float) -> str | None:
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + self._period_s
        return self.judge(stubs_of(triton_pid), now_s)

    def judge(self, stubs: Mapping[int, str | None], now_s: float) -> str | None:
        """`stubs` are the models of those that live by process id; None where one is dead."""
        self._models = {pid: model or self._models.get(pid, "") for pid, model in stubs.items()}
        dead = [pid for pid, model in stubs.items() if model is None]
        self._dead_since_s = {pid: self._dead_since_s.get(pid, now_s) for pid in dead}
        for pid, since_s in self._dead_since_s.items():
            if mender := self._menders.get(self._models[pid]):
                mender.look_after(pid, now_s)
            elif now_s - since_s >= self._grace_s:
                return "one of its model processes died"
        return None


def stubs_of(triton_pid: int) -> dict[int, str | None]:
    """Which model each stub runs, by process id; None for the dead, of whom that is not known."""
    found: dict[int, str | None] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(triton_pid).children():
            with suppress(psutil.Error):
                if STUB_NAME.startswith(process.name()):
                    is_dead = process.status() == psutil.STATUS_ZOMBIE
                    found[process.pid] = None if is_dead else model_of(process.cmdline())
    return found


def model_of(command: Sequence[str]) -> str:
    """A stub is told to run REPOSITORY/MODEL/VERSION/model.py, or a backend's own file."""
    parts = command[1].split("/") if len(command) > 1 else []
    return parts[-3] if len(parts) >= 3 else ""
