"""Whether an address is this machine's own."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_on_this_machine(url: str) -> bool:
    """Of HOST:PORT, or of a Unix socket."""
    return url.startswith("unix:") or is_loopback(url.rpartition(":")[0].strip("[]"))
