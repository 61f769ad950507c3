"""Claiming ports on loopback."""

from __future__ import annotations

import socket

import pytest

from launcher.ports import FREE_PORT_RANGE, PortTaken, claim_port


def test_a_taken_port_is_refused_naming_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            PortTaken, match=f"port {port} on 127.0.0.1 is already in use.*--triton-grpc-port"
        ):
            claim_port("127.0.0.1", port, "--triton-grpc-port", set())


def test_a_port_shared_with_reuseport_counts_as_taken() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server, pytest.raises(PortTaken):
        claim_port("127.0.0.1", server.getsockname()[1], "--port", set())


def test_zero_gives_different_free_ports_outside_the_range_of_outgoing_connections() -> None:
    taken: set[int] = set()
    ports = {claim_port("127.0.0.1", 0, "--port", taken) for _ in range(50)}
    assert len(ports) == 50
    assert ports <= set(FREE_PORT_RANGE)
