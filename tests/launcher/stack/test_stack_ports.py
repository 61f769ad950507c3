"""The ports that a stack claims."""

from __future__ import annotations

import socket

import pytest

from launcher.settings import Settings, SettingsError, StackSettings
from launcher.stack.stack_ports import claim_ports

# A connection of another program may have any port above them at any moment.
BELOW_WHAT_CLIENTS_GET = range(20_000, 32_000, 5)


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_each_triton_server_has_a_port_for_its_metrics_and_none_for_grpc() -> None:
    ports = claim_ports(Settings(StackSettings(port=0, grpc_port=-1, triton_servers=3)))
    assert [grpc for grpc, _ in ports.tritons] == [0, 0, 0]
    assert len({ports.router, *(metrics for _, metrics in ports.tritons)}) == 4
    assert (ports.router_grpc, ports.health) == (-1, 0)


def test_chosen_ports_go_to_the_first_server_and_the_next_free_ones_to_the_others() -> None:
    first = next(each for each in BELOW_WHAT_CLIENTS_GET if all(map(is_free, range(each, each + 5))))
    with socket.create_server(("127.0.0.1", first + 2)):
        stack = StackSettings(port=0, triton_servers=2, triton_grpc_port=first, triton_metrics_port=first + 1)
        ports = claim_ports(Settings(stack))
    assert ports.tritons == ((first, first + 1), (first + 3, first + 4))


def test_more_servers_for_prompts_than_there_are_gpus_for_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    stack = StackSettings(port=0, triton_servers="all", prefill_servers=2)
    with pytest.raises(SettingsError, match=r"prefill_servers is 2; allowed: 0 to 1"):
        claim_ports(Settings(stack))


def test_with_tls_there_is_a_health_port() -> None:
    router = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    assert claim_ports(Settings(StackSettings(port=0, grpc_port=0), router)).health > 0
