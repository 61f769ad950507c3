"""Loopback ports: refuses a taken one by the name of its flag, and finds free ones."""

from __future__ import annotations

import random
import socket

# Below the range from which Linux takes the ports of outgoing connections, so that a free port is still free
# when Triton is started again.
FREE_PORT_RANGE = range(20_000, 32_000)


class PortTaken(Exception):
    """A port is in use; the message names the flag that changes it."""


def claim_port(host: str, wanted: int, flag: str, taken: set[int]) -> int:
    """The wanted port, or any free one for 0; either way it is added to `taken`."""
    if wanted == 0:
        candidates = random.sample(FREE_PORT_RANGE, len(FREE_PORT_RANGE))
        wanted = next(port for port in candidates if port not in taken and is_free(host, port))
    elif not is_free(host, wanted):
        raise PortTaken(f"port {wanted} on {host} is already in use; choose another with {flag}")
    taken.add(wanted)
    return wanted


def is_free(host: str, port: int) -> bool:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections still in TIME_WAIT after a restart do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
