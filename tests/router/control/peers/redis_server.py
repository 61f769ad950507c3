"""A real Redis with a password on a socket of its own, which tests may kill and start again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis
from redis.exceptions import RedisError

from tests.debian import debian_program

PASSWORD = "not-a-secret"


class RedisServer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = directory / "socket"
        self.url = f"unix://:{PASSWORD}@{self.socket}"

    def start(self) -> None:
        program = debian_program("redis-server", "redis-server")
        settings = self._directory / "redis.conf"
        settings.write_text(
            f"port 0\nunixsocket {self.socket}\nrequirepass {PASSWORD}\n"
            f'save ""\nappendonly no\ndir {self._directory}\nlogfile {self._directory / "log"}\n'
        )
        self._process = subprocess.Popen([program, settings], stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < deadline_s, (self._directory / "log").read_text()
            time.sleep(0.02)

    def freeze(self) -> None:
        """Connections stay, commands wait: they are executed when it goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with Redis.from_url(self.url) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    # Paths of sockets must be short: those of pytest's directories need not be.
    with TemporaryDirectory(prefix="redis-") as directory:
        server = RedisServer(Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.stop()
