"""A Triton server of a stack: its command line, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from launcher.stack.triton_door import ADDRESS, reached_at
from router.triton.protocol import service_pb2, service_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.packaging.triton_runtime import TritonRuntime
    from launcher.stack.triton_door import TritonDoor

STUB_TIMEOUT_S = 1800  # a large model that a package loads and compiles takes many minutes
EXIT_TIMEOUT_S = 60
PROBE_TIMEOUT_S = 2.0
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True)
class TritonServer:
    """`models` are loaded when it starts; `number` tells the servers of a stack apart, the first being 0."""

    runtime: TritonRuntime
    repositories: tuple[Path, ...]
    shared_memory_prefix: str
    door: TritonDoor
    metrics_port: int
    models: tuple[str, ...] = ()
    number: int = 0
    metrics_host: str = ADDRESS

    @property
    def name(self) -> str:
        return f"Triton-{self.number}" if self.number else "Triton"

    @property
    def metrics_url(self) -> str:
        """Where this machine reads them."""
        return f"http://{reached_at(self.metrics_host)}:{self.metrics_port}/metrics"

    def command(self) -> list[str]:
        return [
            str(self.runtime.server),
            *(f"--model-repository={repository}" for repository in self.repositories),
            f"--backend-directory={self.runtime.backend_dir}",
            "--model-control-mode=explicit",
            # Else another process is started before that of each model, to complete its config: 1.6 s.
            "--disable-auto-complete-config",
            # By name: all else in the repositories is the router's to load, and need not be in order.
            *(f"--load-model={model}" for model in self.models),
            "--allow-http=false",  # one request can kill the HTTP server of this Triton
            *self.door.options,
            f"--metrics-address={self.metrics_host}",
            f"--metrics-port={self.metrics_port}",
            "--metrics-config=summary_latencies=true",  # quantiles of queue and compute beside their sums
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}",
            f"--backend-config=python,stub-timeout-seconds={STUB_TIMEOUT_S}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        ]

    def is_ready(self, pipeline: str) -> bool:
        with self.door.channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                server = stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PROBE_TIMEOUT_S)
                model = stub.ModelReady(service_pb2.ModelReadyRequest(name=pipeline), timeout=PROBE_TIMEOUT_S)
            except grpc.RpcError:
                return False
            return bool(server.ready and model.ready)

    def is_live(self) -> bool:
        """Whether it answers, whatever that be."""
        with self.door.channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=PROBE_TIMEOUT_S)
            except grpc.RpcError as error:
                return error.code() not in _NO_ANSWER
            return True

    def is_loaded(self, model: str) -> bool:
        """Whether it thinks that it serves a model, be its processes dead; True where it does not answer."""
        with self.door.channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.RepositoryIndexRequest(ready=True)
            try:
                index = stub.RepositoryIndex(request, timeout=PROBE_TIMEOUT_S)
            except grpc.RpcError:
                return True
            return any(found.name == model for found in index.models)
