"""The ports that a stack claims."""

from __future__ import annotations

import socket

from launcher.settings import Settings, StackSettings
from launcher.stack.stack_ports import claim_ports


def test_each_triton_server_has_a_port_for_its_metrics_and_none_for_grpc() -> None:
    ports = claim_ports(Settings(StackSettings(port=0, grpc_port=-1, triton_servers=3)))
    assert [grpc for grpc, _ in ports.tritons] == [0, 0, 0]
    assert len({ports.router, *(metrics for _, metrics in ports.tritons)}) == 4
    assert (ports.router_grpc, ports.health) == (-1, 0)


def test_chosen_ports_go_to_the_first_server_and_the_next_free_ones_to_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        first = probe.getsockname()[1]
    with socket.create_server(("127.0.0.1", first + 2)):
        stack = StackSettings(port=0, triton_servers=2, triton_grpc_port=first, triton_metrics_port=first + 1)
        ports = claim_ports(Settings(stack))
    assert ports.tritons == ((first, first + 1), (first + 3, first + 4))


def test_with_tls_there_is_a_health_port() -> None:
    router = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    assert claim_ports(Settings(StackSettings(port=0, grpc_port=0), router)).health > 0
