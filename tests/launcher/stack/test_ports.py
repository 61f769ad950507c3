"""Claiming ports on loopback."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from launcher.stack.ports import FREE_PORT_RANGE, HIGHEST_PORT, PortUnusable, claim_next_port, claim_port


def test_a_taken_port_is_refused_naming_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            PortUnusable, match=f"port {port} on 127.0.0.1 is already in use.*--triton-grpc-port"
        ):
            claim_port("127.0.0.1", port, "--triton-grpc-port", set())


def test_a_port_shared_with_reuseport_counts_as_taken() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server, pytest.raises(PortUnusable):
        claim_port("127.0.0.1", server.getsockname()[1], "--port", set())


def test_zero_gives_different_free_ports_outside_the_range_of_outgoing_connections() -> None:
    taken: set[int] = set()
    ports = {claim_port("127.0.0.1", 0, "--port", taken) for _ in range(50)}
    assert len(ports) == 50
    assert ports <= set(FREE_PORT_RANGE)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "port 80 on 127.0.0.1 needs root privileges; choose one from 1024 on with --port"),
        (errno.EADDRNOTAVAIL, "127.0.0.1 is not an address of this machine; choose another with --host"),
        (errno.EAFNOSUPPORT, "127.0.0.1 is not an address of this machine"),
    ],
)
@pytest.mark.parametrize("wanted", [80, 0])
def test_only_a_port_in_use_is_reported_as_in_use(
    number: int, words: str, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(host: str, port: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("launcher.stack.ports.bind", refuse)
    with pytest.raises(PortUnusable) as refused:
        claim_port("127.0.0.1", wanted, "--port", set())
    if wanted:
        assert words in str(refused.value)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PortUnusable, match=r"192\.0\.2\.1 is not an address of this machine"):
        claim_port("192.0.2.1", 0, "--port", set())


def test_without_a_free_port_above_the_chosen_one_any_free_port_is_used() -> None:
    assert claim_next_port("127.0.0.1", HIGHEST_PORT, "--triton-grpc-port", set()) in FREE_PORT_RANGE
    assert claim_next_port("127.0.0.1", 0, "--triton-grpc-port", set()) in FREE_PORT_RANGE
