"""The containers of docker-compose.yml, run by podman: networks with names, volumes, health checks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.compose_file import ROOT, compose, example_environment
from deploy.images.podman import Project
from deploy.images.servers import with_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What podman is made of in Debian: names for containers, an init for them, a way from the host's ports.
PACKAGES = ("podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables")
# runc knows mixed cgroups, as machines have that are containers or small virtual machines themselves.
HERE = ("--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file")
WITHIN_S = 600.0
MOST_EXITS = 3
POLL_S = 0.5
# Not the name of docker-compose.yml: what a run that was killed has left is removed before the next.
NAME = "inflight-images"
# Of a checkout: what is mounted into containers.
MOUNTED = ("deploy/compose", "deploy/prometheus", "deploy/grafana")


class Failed(Exception):
    """A container did not do what it should; the message has what it said."""


class Containers:
    def __init__(self, project: Project) -> None:
        self.project = project

    def secret(self, name: str) -> str:
        file: Path = self.project.folder / self.project.compose["secrets"][name]["file"]
        return file.read_text(encoding="utf-8")

    def url(self, name: str) -> str:
        """Where its first port is on this host."""
        address, port, _ = self.project.service(name)["ports"][0].split(":")
        return f"http://{address}:{port}"

    def up(self, *names: str) -> None:
        """Each when what it waits for is healthy."""
        for name in names:
            wanted = self.project.service(name).get("depends_on", {})
            for other in wanted:
                if isinstance(wanted, dict) and wanted[other]["condition"] == "service_healthy":
                    self.wait_healthy(other)
            self.podman("run", *self.project.run_words(name))

    def once(self, name: str, *command: str) -> str:
        """As `docker compose run --rm`."""
        return self.podman("run", *self.project.run_words(name, command, detached=False))

    def inside(self, name: str, *command: str) -> str:
        return self.podman("exec", self._called(name), *command)

    def restart(self, name: str) -> None:
        self.podman("restart", self._called(name))

    def exits(self, name: str) -> int:
        """How often it has ended by itself and was started again."""
        return int(self.podman("inspect", "--format={{.RestartCount}}", self._called(name)))

    def is_healthy(self, name: str) -> bool:
        """By the check of the file."""
        words = self.project.health(name).words
        return self._run("exec", self._called(name), *words).returncode == 0

    def wait_healthy(self, name: str) -> None:
        """For as long as the file gives it, and long enough for a machine that has little time."""
        check = self.project.health(name)

        def is_so() -> bool:
            if self.is_healthy(name):
                return True
            if self.exits(name) > MOST_EXITS:
                raise Failed(f"{name} keeps exiting:\n{self.log(name)[-4000:]}")
            return False

        within_s = max(WITHIN_S, check.patience_s)
        self.wait(is_so, f"{name} is healthy", within_s, name, every_s=check.every_s)

    def wait(
        self,
        condition: Callable[[], bool],
        what: str,
        within_s: float = WITHIN_S,
        *names: str,
        every_s: float = POLL_S,
    ) -> None:
        deadline_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline_s:
                said = "\n".join(f"{name}:\n{self.log(name)[-4000:]}" for name in names)
                raise Failed(f"not within {within_s:.0f} s: {what}\n{said}")
            time.sleep(every_s)

    def log(self, name: str) -> str:
        said = self._run("logs", self._called(name))
        return said.stdout + said.stderr

    def podman(self, *words: str) -> str:
        done = self._run(*words)
        if done.returncode:
            raise Failed(f"podman {' '.join(words)}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *HERE, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _called(self, name: str) -> str:
        return f"{self.project.name}-{name}"


@contextmanager
def opened(settings: Mapping[str, str], name: str = NAME) -> Iterator[Containers]:
    """A checkout of its own after setup.sh, with networks and volumes; all of it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="inflight-compose-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        for part in MOUNTED:
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("secrets"))
        subprocess.run(
            ["sh", ROOT / "deploy/compose/setup.sh", folder], check=True, stdout=subprocess.DEVNULL
        )
        whole = with_programs(compose({**example_environment(), **settings}))
        containers = Containers(Project(name, folder, whole))
        _clear(containers)
        try:
            for network, told in containers.project.compose["networks"].items():
                internal = ["--internal"] if told.get("internal") else []
                containers.podman("network", "create", *internal, f"{name}_{network}")
            yield containers
        finally:
            _clear(containers)


def _clear(containers: Containers) -> None:
    """Nobody waits for what they would still say."""
    compose_file, name = containers.project.compose, containers.project.name
    containers._run(
        "rm",
        "--force",
        "--ignore",
        "--volumes",
        "--time=0",
        *(f"{name}-{each}" for each in compose_file["services"]),
    )
    for kind in ("volume", "network"):
        containers._run(kind, "rm", "--force", *(f"{name}_{each}" for each in compose_file[f"{kind}s"]))
