"""A stack with stand-in parts in a process of its own, to be watched, hurt and stopped by a test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import psutil

from launcher.stack.runs import SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX
from launcher.toml import to_toml
from tests.launcher.stand_ins.project import write_checkpoint, write_project
from tests.pace import is_over

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable

UP = Path(__file__).with_name("up.py")
READY = "Inflight is ready"


class RunningStack:
    """Starts at once; `directory` may hold what an earlier stack of the same test left there."""

    def __init__(
        self,
        directory: Path,
        stack: dict[str, int] | None = None,
        engine: dict[str, str] | None = None,
        router: dict[str, int] | None = None,
        drain_s: float = 0,
        is_piped: bool = False,
    ) -> None:
        self.data_dir = directory / "data"
        self.releases = self.data_dir / "releases" / "repository"
        project, model = directory / "project", directory / "model"
        if not project.exists():
            write_project(project)
            write_checkpoint(model)
        settings = directory / "inflight.toml"
        section = {
            "port": 0,
            "grpc_port": 0,
            "data_dir": str(self.data_dir),
            "model": str(model),
            "embeddings": "",
        }
        section.update(stack or {})
        settings.write_text(to_toml({"stack": section, "engine": engine or {}, "router": router or {}}))
        self._output = directory / "output"
        with self._output.open("wb") as file:
            self._reader = subprocess.Popen(["cat"], stdin=PIPE, stdout=file) if is_piped else None
            self.process = subprocess.Popen(
                [sys.executable, str(UP), str(project), str(settings)],
                stdout=self._reader.stdin if self._reader else file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "DRAIN_S": str(drain_s)},
            )
        if self._reader and self._reader.stdin:
            self._reader.stdin.close()

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def run_directory(self) -> Path:
        (directory,) = (lock.parent for lock in self.data_dir.glob("run/*/owner.lock"))
        return directory

    @property
    def tritons(self) -> list[dict[str, str]]:
        """The address and the secret of each, as the router is told."""
        servers: list[dict[str, str]] = tomllib.loads((self.run_directory / "router.toml").read_text())[
            "triton_servers"
        ]
        return servers

    @property
    def logs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.data_dir.glob("run/*/*.log")}

    def processes(self, name: str = "") -> list[psutil.Process]:
        """What runs below the launcher, with `name` in the program or its first argument."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in found if is_live(process) and name in program(process)]

    def shared_memory(self) -> list[str]:
        stack_ids = [directory.name for directory in self.data_dir.glob("run/*") if directory.is_dir()]
        prefixes = tuple(f"{SHARED_MEMORY_PREFIX}{stack_id}_" for stack_id in stack_ids)
        return [name for name in os.listdir(SHARED_MEMORY_DIR) if name.startswith(prefixes)]

    def wait_for(self, text: str, times: int = 1) -> None:
        self.wait_until(lambda: self.output.count(text) >= times)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 40) -> None:
        began_s = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.output
            assert not is_over(began_s, timeout_s), self.output
            time.sleep(0.05)

    def lose_reader(self) -> None:
        """From now on nobody reads what it says."""
        assert self._reader is not None
        self._reader.kill()
        self._reader.wait()

    def end(self) -> None:
        """For a test's own end, whatever happened before."""
        processes = (
            [psutil.Process(self.process.pid), *self.processes()] if self.process.poll() is None else []
        )
        for process in processes:
            if process.is_running():
                process.kill()
        self.process.wait()
        if self._reader:
            self.lose_reader()


def program(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # it has ended meanwhile
        return " ".join(process.cmdline()[:2])
    return ""


def is_live(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
