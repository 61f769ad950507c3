"""Addresses of the internet, and addresses that only look like some."""

from __future__ import annotations

import pytest

from router.core.address import is_public

PUBLIC = "93.184.215.14"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (PUBLIC, True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("172.16.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:5db8:d70e", True),
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::7f00:1", False),
        ("64:ff9b:1:7f00:0:100::", False),
        ("2002:5db8:d70e::1", True),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("2001:0:7f00:1::5db8:d70e", False),
        ("2001:0:5db8:d70e:0:0:80ff:fffe", False),
        ("2606:2800:21f:1:0:5efe:10.0.0.1", False),
        ("2606:2800:21f:1:200:5efe:127.0.0.1", False),
        ("::127.0.0.1", False),
        ("::", False),
        ("fec0::1", False),
        ("ff0e::1", False),
        ("4000::1", False),
    ],
)
def test_addresses_of_this_machine_and_its_networks_are_not_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected
