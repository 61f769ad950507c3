"""Locust in a process of its own: it changes sockets and threads for everyone in the process it is in."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.paths import PROJECT_ROOT
from launcher.tether import tethered
from loadtest.users.web_page import PASSWORD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCUSTFILE = PROJECT_ROOT / "loadtest" / "locustfile.py"
INSTALL = "pip install 'inflight[loadtest]', or make loadtest"
# Answers in flight when the time is up may finish; what takes longer counts as abandoned.
STOP_TIMEOUT_S = 20
_END_LIMIT_S = STOP_TIMEOUT_S + 10.0


class LocustMissing(Exception):
    """It is not installed; the message says what to do."""


def check_installed() -> None:
    for package in ("locust", "matplotlib"):
        if find_spec(package) is None:
            raise LocustMissing(f"load tests need the package {package}: {INSTALL}")


@dataclass(frozen=True)
class Web:
    """Where Locust's page is, and what it asks for."""

    host: str = "127.0.0.1"
    port: int = 8089
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12), repr=False)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


def locust_command(
    url: str,
    users: int,
    duration_s: float,
    folder: Path,
    options: Mapping[str, str],
    flags: Sequence[str] = (),
    web: Web | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """`options` and `flags` are those of the locustfile; `extra` is passed on as it is."""
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", url]
    command += ["--users", str(users), "--spawn-rate", str(users)]
    command += ["--run-time", f"{max(1, round(duration_s))}s"]
    command += ["--stop-timeout", f"{STOP_TIMEOUT_S}s", "--csv", str(folder / "locust")]
    # Its CSV files lack the last second, which this one has.
    command += ["--json-file", str(folder / "locust"), "--results", str(folder / "requests")]
    for name, value in options.items():
        command += [f"--{name}", value]
    command += [f"--{flag}" for flag in flags]
    if web is None:
        command += ["--headless", "--only-summary"]
    else:
        command += ["--web-host", web.host, "--web-port", str(web.port)]
    return [*command, *extra]


class LocustProcess:
    """What it says goes into a file; it ends when its time is up, when told to, or with this process."""

    def __init__(self, command: Sequence[str], log: Path, web: Web | None = None) -> None:
        self._log = log
        environment = {**os.environ, PASSWORD_VARIABLE: web.password} if web else None
        with log.open("w") as file:
            self._process = subprocess.Popen(
                tethered([*command]),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def last_words(self, lines: int = 12) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()[-lines:]

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within it."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Lets it write what it has."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGINT)
            if not self.wait(_END_LIMIT_S):
                self._process.kill()
                self._process.wait()
