"""A real name server for one name, and programs that ask it and nobody else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.debian import debian_program
from tests.pace import is_over, patience

NAME = "tritons.inflight.test"
# Of its own, so that it is nobody else's.
ADDRESS = "127.53.53.53"
START_LIMIT_S = 20.0


@dataclass(frozen=True)
class NameServer:
    hosts: Path
    resolver: Path
    process: subprocess.Popen[bytes]

    def say(self, *addresses: str) -> None:
        """Which addresses the name has from now on."""
        self.hosts.write_text("".join(f"{address} {NAME}\n" for address in addresses))
        self.process.send_signal(signal.SIGHUP)

    def asked_by(self, command: list[str]) -> list[str]:
        """The command in a mount namespace in which this is the name server."""
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self.resolver), *command]


def may_serve_names() -> bool:
    """On port 53, and to programs that ask nobody else."""
    return not os.geteuid() and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode


@contextmanager
def name_server(folder: Path, *addresses: str) -> Iterator[NameServer]:
    hosts, resolver = folder / "hosts", folder / "resolv.conf"
    resolver.write_text(f"nameserver {ADDRESS}\n")
    hosts.write_text("".join(f"{address} {NAME}\n" for address in addresses))
    command = [
        str(debian_program("dnsmasq-base", "dnsmasq")),
        "--keep-in-foreground",
        "--conf-file=/dev/null",
    ]
    command += ["--no-resolv", "--no-hosts", f"--addn-hosts={hosts}", "--user=root", "--pid-file="]
    process = subprocess.Popen([*command, f"--listen-address={ADDRESS}", "--bind-interfaces"])
    try:
        _wait(process)
        yield NameServer(hosts, resolver, process)
    finally:
        process.terminate()
        process.wait(patience(START_LIMIT_S))


def _wait(process: subprocess.Popen[bytes]) -> None:
    began_s = time.monotonic()
    while True:
        assert process.poll() is None, "dnsmasq has ended"
        try:
            socket.create_connection((ADDRESS, 53), patience(1.0)).close()
            return
        except OSError:
            assert not is_over(began_s, START_LIMIT_S), "dnsmasq does not answer"
            time.sleep(0.02)
