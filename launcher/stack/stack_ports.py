"""The ports of a stack, all of them claimed before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.settings import refusal
from launcher.stack.gpus import server_count
from launcher.stack.ports import claim_next_port, claim_port
from launcher.stack.triton_door import ADDRESS

if TYPE_CHECKING:
    from launcher.settings import Settings


@dataclass(frozen=True)
class StackPorts:
    """`tritons` has gRPC and metrics of each server, gRPC being 0 where it has a socket instead of a port.

    `router_grpc` is -1 where there is none.
    """

    router: int
    router_grpc: int
    health: int
    tritons: tuple[tuple[int, int], ...]


def claim_ports(settings: Settings) -> StackPorts:
    stack = settings.stack
    servers = server_count(stack.triton_servers, settings.engine)
    if stack.prefill_servers >= servers:
        allowed = f"0 to {servers - 1}, fewer than there are GPUs for: the others answer"
        raise refusal("stack.prefill_servers", stack.prefill_servers, allowed)
    taken: set[int] = set()
    port = claim_port(stack.host, stack.port, "--port", taken)
    grpc = stack.grpc_port
    if grpc >= 0:
        grpc = claim_port(stack.host, grpc, "--grpc-port", taken)
    triton_grpc = stack.triton_grpc_port
    if triton_grpc:
        triton_grpc = claim_port(ADDRESS, triton_grpc, "--triton-grpc-port", taken)
    first = (triton_grpc, claim_port(ADDRESS, stack.triton_metrics_port, "--triton-metrics-port", taken))
    health = settings.router.get("health_port", 0)
    if settings.router.get("tls_cert"):
        health = claim_port(ADDRESS, health, "[router] health_port", taken)
    others = [
        (
            claim_next_port(ADDRESS, triton_grpc, "--triton-grpc-port", taken) if triton_grpc else 0,
            claim_next_port(ADDRESS, stack.triton_metrics_port, "--triton-metrics-port", taken),
        )
        for _ in range(1, servers)
    ]
    return StackPorts(port, grpc, health, (first, *others))
