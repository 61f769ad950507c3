"""Loopback ports: refuses one that cannot be used by the name of its flag, and finds free ones."""

from __future__ import annotations

import errno
import random
import socket

# Below the range from which Linux takes the ports of outgoing connections, so that a free port is still free
# when Triton is started again.
FREE_PORT_RANGE = range(20_000, 32_000)
HIGHEST_PORT = 65_535


class PortUnusable(Exception):
    """A port cannot be used; the message says why, and what changes it."""


def claim_port(host: str, wanted: int, flag: str, taken: set[int]) -> int:
    """The wanted port, or any free one for 0; either way it is added to `taken`."""
    if wanted == 0:
        candidates = random.sample(FREE_PORT_RANGE, len(FREE_PORT_RANGE))
        wanted = next(port for port in candidates if port not in taken and is_free(host, port, flag))
    elif not is_free(host, wanted, flag):
        raise PortUnusable(f"port {wanted} on {host} is already in use; choose another with {flag}")
    taken.add(wanted)
    return wanted


def claim_next_port(host: str, after: int, flag: str, taken: set[int]) -> int:
    """The first free port above one that was chosen; any free one where 0 was."""
    for port in range(after + 1, HIGHEST_PORT + 1) if after else ():
        if port not in taken and is_free(host, port, flag):
            return claim_port(host, port, flag, taken)
    return claim_port(host, 0, flag, taken)


def is_free(host: str, port: int, flag: str) -> bool:
    """Raises for what no other program is to blame for."""
    try:
        bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        if error.errno == errno.EACCES:
            raise PortUnusable(
                f"port {port} on {host} needs root privileges; choose one from 1024 on with {flag}"
            ) from error
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise PortUnusable(
                f"{host} is not an address of this machine; choose another with --host"
            ) from error
        raise
    return True


def bind(host: str, port: int) -> None:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections still in TIME_WAIT after a restart do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
