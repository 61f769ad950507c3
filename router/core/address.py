"""Judges network addresses: those of this machine, and those of the internet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_ALLOCATED = IPv6Network("2000::/3")  # all that is assigned for the internet
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
# An IPv4 address is reached by these; it is in the last 32 bits.
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0/96"), IPv6Network("::/96"))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_on_this_machine(url: str) -> bool:
    """Of HOST:PORT, or of a Unix socket."""
    return url.startswith("unix:") or is_loopback(url.rpartition(":")[0].strip("[]"))


def is_public(address: str) -> bool:
    """Tell an address of the internet from those of this machine and of the networks around it.

    An IPv6 address that stands for IPv4 addresses is public if those are, since packets end there. NAT64 of
    a network's own (64:ff9b:1::/48) does not say where in it the IPv4 address is, and is not public.
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return found.is_global and not found.is_multicast
    embedded = _embedded(found)
    stands_for_them = found.sixtofour is not None or any(found in each for each in _TRANSLATED)
    is_open = stands_for_them or (found in _ALLOCATED and found.is_global)
    return is_open and all(each.is_global and not each.is_multicast for each in embedded)


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if any(address in each for each in _TRANSLATED):
        return [last]
    found = [address.sixtofour] if address.sixtofour else list(address.teredo or ())
    return [*found, last] if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP else found
