"""A Triton server of a stack: its command line, and what can be asked of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
from tritonclient.grpc import (
    service_pb2,
    service_pb2_grpc,
)

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.packaging.triton_runtime import TritonRuntime

ADDRESS = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
SECRET_NAME = "inflight"
# Inference, health and metadata stay open to the router; everything else needs the secret.
RESTRICTED = "shared-memory,model-repository,logging,trace,model-config,statistics"
STUB_TIMEOUT_S = 300
EXIT_TIMEOUT_S = 60
PROBE_TIMEOUT_S = 2.0
NO_PROXY = (("grpc.enable_http_proxy", 0),)


@dataclass(frozen=True)
class TritonServer:
    """`models` are loaded when it starts; `number` tells the servers of a stack apart, the first being 0."""

    runtime: TritonRuntime
    repositories: tuple[Path, ...]
    shared_memory_prefix: str
    grpc_port: int
    metrics_port: int
    models: tuple[str, ...] = ()
    number: int = 0
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    host: str = ADDRESS  # where it listens

    @property
    def name(self) -> str:
        return f"Triton-{self.number}" if self.number else "Triton"

    @property
    def grpc_url(self) -> str:
        """Where this machine reaches it."""
        return f"{self._reached_at}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._reached_at}:{self.metrics_port}/metrics"

    @property
    def _reached_at(self) -> str:
        if self.host in EVERYWHERE:
            return ADDRESS
        return f"[{self.host}]" if ":" in self.host else self.host

    def command(self) -> list[str]:
        return [
            str(self.runtime.server),
            *(f"--model-repository={repository}" for repository in self.repositories),
            f"--backend-directory={self.runtime.backend_dir}",
            "--model-control-mode=explicit",
            # By name: all else in the repositories is the router's to load, and need not be in order.
            *(f"--load-model={model}" for model in self.models),
            "--allow-http=false",  # one request can kill the HTTP server of this Triton
            f"--grpc-address={self.host}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.metrics_port}",
            "--metrics-config=summary_latencies=true",  # quantiles of queue and compute beside their sums
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

    def is_loaded(self, model: str) -> bool:
        """Whether it thinks that it serves a model, be its processes dead; True where it does not answer."""
        secret = ((f"triton-grpc-protocol-{SECRET_NAME}", self.secret),)
        with grpc.insecure_channel(self.grpc_url, options=NO_PROXY) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.RepositoryIndexRequest(ready=True)
            try:
                index = stub.RepositoryIndex(request, timeout=PROBE_TIMEOUT_S, metadata=secret)
            except grpc.RpcError:
                return True
            return any(found.name == model for found in index.models)
