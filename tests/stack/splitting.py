"""The containers of docker-compose.yml without Docker: their very commands, as processes of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.stack import free_port
from deploy.compose_file import ROOT, compose
from launcher.packaging.triton_runtime import PYTHON as RUNNING_PYTHON
from launcher.packaging.triton_runtime import find_libpython, triton_wheel
from tests.debian import debian_program
from tests.deploy.compose.reading import replaced
from tests.pace import patience
from tests.router.tenants.postgres import running_postgres
from tests.waiting import wait_until

STOP_LIMIT_S = 60.0
# `python` in the place of the image's, with what `inflight` runs there.
PYTHON = sys.executable
# Two hosts with the same ports.
FIRST, SECOND = "127.0.0.1", "127.0.0.2"
INFLIGHT = [PYTHON, "-m", "launcher"]


@dataclass
class Container:
    """What it says is kept in a file."""

    command: list[str]
    folder: Path
    output_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        # As a container does, each has a directory for what is not to stay.
        own = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(self.folder / "tmp")}
        with self.output_file.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **own, **self.environment},
            )

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(patience(STOP_LIMIT_S))


@dataclass(frozen=True)
class Split:
    """`folder` is what the containers share: their settings, secrets and volumes."""

    folder: Path
    router: Container
    triton: Container
    ports: Mapping[str, int]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def secrets(self) -> Path:
        return self.folder / "deploy" / "compose" / "secrets"

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text()

    def key_header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret('admin_key')}"}

    def ask(self, path: str, key: str = "", body: Any = None, url: str = "") -> tuple[int, str]:
        """Status and body, of an address that is this router's unless another is given."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{url or self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=patience(30)) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def chat(self, key: str, url: str = "") -> tuple[int, str]:
        message = {"role": "user", "content": "Name the capital of France."}
        body = {"model": "tiny", "max_tokens": 4, "messages": [message]}
        return self.ask("/v1/chat/completions", key, body, url)

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        wait_until(condition, lambda: (self.router.output, self.triton.output), limit_s)

    def wait_for(self, wanted: int, limit_s: float, path: str = "/health/ready", url: str = "") -> None:
        def is_wanted() -> bool:
            return self.ask(path, url=url)[0] == wanted

        def found() -> object:
            return self.ask(path, url=url), self.router.output, self.triton.output

        wait_until(is_wanted, found, limit_s)

    def health_of(self, service: str, *pairs: tuple[str, str]) -> int:
        """The exit status of a health check as docker-compose.yml has it, at this machine's addresses."""
        kind, *words = compose()["services"][service]["healthcheck"]["test"]
        command = replaced(words, *pairs)
        if kind == "CMD-SHELL":
            command = ["sh", "-c", *command]
        elif command[0] == "python3":
            command[0] = PYTHON
        return subprocess.run(command, capture_output=True, timeout=patience(20), check=False).returncode

    def locust(self) -> Container:
        """The load test's web page, whose key comes from a file."""
        command = replaced(
            compose()["services"]["locust"]["command"],
            ("/run/secrets", str(self.secrets)),
            ("exec locust", f"exec {PYTHON} -m locust"),
            ("/opt/inflight/app/", f"{ROOT}/"),
            ("http://router:8080", self.url),
            ("--web-port 8089", f"--web-host 127.0.0.1 --web-port {self.ports['locust']}"),
        )
        return Container(command, self.folder, self.folder / "locust.log")

    def another_router(self) -> Container:
        """A replica, as of `docker compose up --scale router=2`."""
        command = replaced(
            self.router.command,
            (f"--port={self.ports['http']}", f"--port={self.ports['http-2']}"),
            (f"--grpc-port={self.ports['grpc']}", f"--grpc-port={self.ports['grpc-2']}"),
        )
        return Container(command, self.folder, self.folder / "router-2.log")

    def inflight(self, *words: str, host: str = "") -> str:
        """What a command of an operator says, on the router's host or another that has a disk of its own."""
        command = [*INFLIGHT, *words]
        if host:
            command = on_its_own_disk(self.folder, host, command)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def another_triton(self) -> Container:
        """On a second host, with the same ports."""
        command = replaced(self.triton.command, (f"--host={FIRST}", f"--host={SECOND}"))
        return replace(self.triton, command=command, output_file=self.folder / "triton-2.log")


@contextmanager
def split_deployment(folder: Path, model: Path, engine: Mapping[str, str]) -> Iterator[Split]:
    """After deploy/compose/setup.sh; the router is started first, and waits."""
    names = ("http", "grpc", "http-2", "grpc-2", "triton", "metrics", "redis", "locust")
    ports = {name: free_port() for name in names}
    shutil.copytree(ROOT / "deploy" / "compose", folder / "deploy" / "compose")
    made = subprocess.run(["sh", ROOT / "deploy/compose/setup.sh", folder], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    secrets = folder / "deploy" / "compose" / "secrets"
    (folder / "tmp").mkdir()
    with ExitStack() as closing:
        postgres = closing.enter_context(running_postgres())
        rewrite(secrets / "store_url", postgres.new_database("split"))
        closing.enter_context(running_redis(folder, ports["redis"]))
        redis_url = (secrets / "redis_url").read_text()
        rewrite(secrets / "redis_url", redis_url.replace("redis:6379", f"127.0.0.1:{ports['redis']}"))
        write_settings(folder, engine)
        split = Split(folder, router_of(folder, ports), triton_of(folder, model, ports), ports)
        for container in (split.router, split.triton):
            container.start()
            closing.callback(end, container)
        yield split


def end(container: Container) -> None:
    if container.process.poll() is None:
        try:
            container.stop()
        finally:
            container.process.kill()
            container.process.wait()


def rewrite(secret: Path, text: str) -> None:
    secret.chmod(0o600)
    secret.write_text(text)


@cache
def has_own_disks() -> bool:
    """Whether each container can have files of its own at the paths that all of them know."""
    return not os.geteuid() and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode


def on_its_own_disk(folder: Path, host: str, command: list[str]) -> list[str]:
    """The command where state and data are that host's alone; else they are everybody's."""
    for place in (folder / name for name in ("state", "data")):
        place.mkdir(exist_ok=True)
        (disk_of(folder, host) / place.name).mkdir(parents=True, exist_ok=True)
    if not has_own_disks():
        return command
    script = 'mount --bind "$0/state" "$1/state"; mount --bind "$0/data" "$1/data"; shift; exec "$@"'
    return ["unshare", "--mount", "sh", "-euc", script, str(disk_of(folder, host)), str(folder), *command]


def disk_of(folder: Path, host: str) -> Path:
    """Where this process finds what the host sees in the folder."""
    return folder / "disks" / host if has_own_disks() else folder


def write_settings(folder: Path, engine: Mapping[str, str], *, shares_state: bool = False) -> None:
    text = (folder / "deploy" / "compose" / "inflight.toml").read_text()
    for old, new in (("/data", "data"), ("/state", "state"), ("/run/secrets", "deploy/compose/secrets")):
        assert f'"{old}' in text
        text = text.replace(f'"{old}', f'"{folder / new}')
    if has_own_disks() and not shares_state:
        text += 'release_files = "store"\n'
    lines = [f"{key} = {json.dumps(value)}" for key, value in engine.items()]
    (folder / "inflight.toml").write_text("\n".join([text, "[engine]", *lines, ""]))


def router_of(folder: Path, ports: Mapping[str, int]) -> Container:
    program, *words = compose()["services"]["router"]["command"]
    assert program == "inflight"
    command = replaced(
        words,
        ("--port=8080", f"--port={ports['http']}"),
        ("--grpc-port=8081", f"--grpc-port={ports['grpc']}"),
        ("triton:8001", f"{FIRST}:{ports['triton']}"),
        ("/run/secrets", str(folder / "deploy" / "compose" / "secrets")),
    )
    return Container([*INFLIGHT, *command], folder, folder / "router.log")


def triton_of(folder: Path, model: Path, ports: Mapping[str, int]) -> Container:
    """That of the GPU's service, whose image brings a Triton of its own."""
    program, *words = compose()["services"]["triton"]["command"]
    assert program == "inflight"
    command = replaced(
        words,
        ("--host=0.0.0.0", f"--host={FIRST}"),
        ("--grpc-port=8001", f"--grpc-port={ports['triton']}"),
        ("--metrics-port=8002", f"--metrics-port={ports['metrics']}"),
        ("--model=smollm2-135m-instruct", f"--model={folder / 'data' / model.name}"),
        ("--embeddings=all-minilm-l6-v2", "--embeddings="),
        ("/run/secrets", str(folder / "deploy" / "compose" / "secrets")),
        ("/opt/tritonserver", str(installed_triton(folder / "tritonserver"))),
    )
    command = on_its_own_disk(folder, "triton", [*INFLIGHT, *command])
    shutil.copytree(model, disk_of(folder, "triton") / "data" / model.name)
    libpython = str(find_libpython().parent)  # in the image it is where the system looks for it
    return Container(command, folder, folder / "triton.log", {"LD_LIBRARY_PATH": libpython})


def installed_triton(home: Path) -> Path:
    """The one of the wheel, laid out as NVIDIA's images have theirs."""
    wheel, backend = triton_wheel(), home / "backends" / "python"
    backend.mkdir(parents=True)
    (home / "bin").symlink_to(wheel / "bin")
    for file in (wheel / "backends" / "python").iterdir():
        (backend / file.name).symlink_to(file)
    stub = wheel / "python_backend_stubs" / RUNNING_PYTHON / "triton_python_backend_stub"
    (backend / stub.name).unlink(missing_ok=True)
    (backend / stub.name).symlink_to(stub)
    return home


@contextmanager
def running_redis(folder: Path, port: int) -> Iterator[None]:
    """With the configuration of the container, at another address."""
    config = (folder / "deploy" / "compose" / "redis.conf").read_text()
    secrets = folder / "deploy" / "compose" / "secrets"
    assert "/run/secrets" in config
    path = folder / "redis.conf"
    path.write_text(f"{config.replace('/run/secrets', str(secrets))}\nport {port}\nbind 127.0.0.1\n")
    server = subprocess.Popen(
        [debian_program("redis-server", "redis-server"), path], stdout=subprocess.DEVNULL, cwd=folder
    )
    try:
        yield
    finally:
        server.terminate()
        server.wait(patience(STOP_LIMIT_S))
