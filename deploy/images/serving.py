"""Starts Triton and a router from their images, as docker-compose.yml does, and asks for a chat."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deploy.images.buildah import AUTHORITIES, Buildah

LIMIT_S = 900.0
USER = 10001
# No PostgreSQL and no Redis are beside them: the store is a file. All else is the compose file's.
SETTINGS = '[stack]\ndata_dir = "/data"\n\n[router]\nstate_dir = "/state"\n'
QUESTION = {
    "model": "smollm2-135m-instruct",
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "Name the capital of France."}],
}


def ask_for_a_chat(buildah: Buildah, services: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="inflight-run-") as folder, ExitStack() as closing:
        place = Place(Path(folder))
        began_s = time.monotonic()
        for name in ("triton-cpu", "router"):
            closing.enter_context(started(buildah, services[name], place, name))
        wait_for(lambda: answers("/health/ready"), place)
        ready_s = time.monotonic() - began_s
        key = (place.folder / "secrets" / "admin_key").read_text().strip()
        answer = ask(key)
        return {
            "ready_after_s": round(ready_s, 1),
            "answered": answer["choices"][0]["message"]["content"],
            "finish": answer["choices"][0]["finish_reason"],
        }


class Place:
    """What containers share, and their secrets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        for name in ("data", "state"):
            (folder / name).mkdir()
            os.chown(folder / name, USER, USER)
        (folder / "settings").mkdir()
        (folder / "settings" / "inflight.toml").write_text(SETTINGS)
        (folder / "hosts").write_text("127.0.0.1 localhost triton router\n")
        (folder / "deploy/compose").mkdir(parents=True)
        shutil.copyfile("deploy/compose/env.example", folder / "deploy/compose/env.example")
        script = Path("deploy/compose/setup.sh").resolve()
        subprocess.run(["sh", script, folder], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        (folder / "deploy/compose/secrets").chmod(0o755)
        (folder / "deploy/compose/secrets").rename(folder / "secrets")

    @property
    def volumes(self) -> list[str]:
        mounts = {
            "data": "/data",
            "state": "/state",
            "settings": "/etc/inflight:ro",
            "secrets": "/run/secrets:ro",
            "hosts": "/etc/hosts:ro",
        }
        return [f"--volume={self.folder / name}:{target}" for name, target in mounts.items()]


@contextmanager
def started(buildah: Buildah, service: Mapping[str, Any], place: Place, name: str) -> Iterator[None]:
    """By the command, the user and the environment of the file."""
    with buildah.container(f"localhost/{service['image']}") as (container, _):
        given = [f"--env={key}={value}" for key, value in service["environment"].items()]
        command = [
            "buildah",
            "run",
            "--isolation=chroot",
            f"--user={service['user']}",
            *given,
            *place.volumes,
        ]
        command += [f"--volume={AUTHORITIES}", f"--workingdir={service['working_dir']}", container, "--"]
        with (place.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *service["command"]], stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(condition: Callable[[], bool], place: Place) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            logs = [f"{log.name}:\n{log.read_text()[-3000:]}" for log in place.folder.glob("*.log")]
            raise SystemExit("the containers were not ready in time\n" + "\n".join(logs))
        time.sleep(0.5)


def answers(path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:8080{path}", timeout=3) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def ask(key: str) -> Any:
    request = urllib.request.Request(
        "http://127.0.0.1:8080/v1/chat/completions",
        data=json.dumps(QUESTION).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)
