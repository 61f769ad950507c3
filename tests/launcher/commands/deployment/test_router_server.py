"""`inflight router`: it waits for what Triton serves, follows it, and ends as it is told."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.stack import free_port
from launcher.commands.deployment.model_facts import facts_path, write_facts
from launcher.commands.deployment.router_server import RouterDeployment, RouterOptions, all_servers
from launcher.commands.deployment.shared_state import deployment_settings
from launcher.commands.main import app
from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import Checkpoint
from launcher.packaging.models.fingerprint import Fingerprint
from launcher.stack.router_process import BuiltIn, Served, served
from tests.pace import patience
from tests.waiting import wait_until

LIMIT_S = 40.0


class Router:
    """The command in a process of its own, in front of a Triton that is not there."""

    def __init__(self, state: Path, *words: str) -> None:
        self.state, self.port = state, free_port()
        self._output = state.parent / "output"
        command = [sys.executable, "-m", "launcher", "router", "--triton", f"127.0.0.1:{free_port()}"]
        command += ["--state-dir", str(state), "--port", str(self.port), "--grpc-port", "-1", *words]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or self.process.poll() is not None, lambda: self.output, LIMIT_S)
        assert self.process.poll() is None, self.output

    def models(self) -> list[str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/v1/models", timeout=patience(5)
            ) as response:
                return [model["id"] for model in json.load(response)["data"]]
        except OSError:
            return []

    def is_ready(self) -> bool | None:
        """None where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=patience(5)):
                return True
        except urllib.error.HTTPError:
            return False
        except OSError:
            return None


@pytest.fixture
def routers() -> Iterator[list[Router]]:
    """Those put here are ended with the test."""
    started: list[Router] = []
    yield started
    for router in started:
        router.process.kill()
        router.process.wait()


def tell(state: Path, name: str, checkpoint: Path) -> None:
    """As `inflight triton` does."""
    model = Checkpoint(name, checkpoint, checkpoint)
    write_facts(state, served(BuiltIn(model, Fingerprint("aa", name, 1)), None))


def test_a_router_waits_for_tritons_model_facts_and_follows_their_changes(
    tmp_path: Path, routers: list[Router], default_checkpoint: Path
) -> None:
    router = Router(tmp_path / "state")
    routers.append(router)
    router.until(lambda: "Waiting for `inflight triton` to write" in router.output)
    tell(router.state, "first", default_checkpoint)
    router.until(lambda: router.models() == ["first"])
    assert router.is_ready() is False, "it answers, and there is no Triton"
    tell(router.state, "second", default_checkpoint)
    router.until(lambda: router.models() == ["second"])
    assert "What Triton serves has changed: restarting the router." in router.output
    router.process.terminate()
    assert router.process.wait(patience(LIMIT_S)) == 0, router.output
    assert "INFO router.server stopped" in router.output, "the router's log is the container's"


def test_a_stop_while_the_router_waits_names_the_signal(tmp_path: Path, routers: list[Router]) -> None:
    router = Router(tmp_path / "state")
    routers.append(router)
    router.until(lambda: "Waiting for" in router.output)
    router.process.terminate()
    assert router.process.wait(patience(LIMIT_S)) == 128 + signal.SIGTERM


def test_a_router_finds_all_servers_that_were_started_with_the_one_it_is_told() -> None:
    ports = (8001, 8011, 8021)
    assert all_servers(["triton:8001"], ports) == ["triton:8001", "triton:8011", "triton:8021"]
    assert all_servers(["dns:///triton:8001"], (8001, 8011)) == ["dns:///triton:8001", "dns:///triton:8011"]
    assert all_servers(["other:9000", "file:///etc/tritons"], ports) == ["other:9000", "file:///etc/tritons"]
    assert all_servers(["triton:8001", "triton:8011"], (8001, 8011)) == ["triton:8001", "triton:8011"]
    assert all_servers(["triton:8001"], ()) == ["triton:8001"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--triton", "http://triton:8001"], "--triton http://triton:8001: expected HOST:PORT"),
        (["--triton", "triton"], "--triton triton: expected HOST:PORT"),
        (["--triton", "dns:///triton"], "--triton dns:///triton: expected HOST:PORT"),
        (
            ["--triton", "triton:70000"],
            "--triton triton:70000: expected HOST:PORT with a port from 1 to 65535",
        ),
        (["--triton", "t:1", "--admin-key-file", "nowhere"], "--admin-key-file: nowhere cannot be read"),
        (["--triton", "t:1", "--port", "70000"], "stack.port is 70000"),
    ],
)
def test_unusable_options_are_refused_before_the_router_waits(
    words: list[str], message: str, tmp_path: Path
) -> None:
    told = CliRunner().invoke(app, ["router", "--state-dir", str(tmp_path), "--grpc-port", "-1", *words])
    assert told.exit_code == 2, told.output
    assert message in told.stderr.replace("\n", " ")


def test_unreadable_facts_while_serving_are_reported_once(tmp_path: Path) -> None:
    said = io.StringIO()
    settings = deployment_settings(None, {"port": 0, "grpc_port": -1}, tmp_path)
    console = StackConsole(errors=Console(file=said, width=200))
    deployment = RouterDeployment(settings, RouterOptions(("triton:8001",)), console)
    router = deployment._router(tmp_path / "router.toml")
    service = deployment._service(router, tmp_path)
    for text in ("{", "{", '{"format": 0}'):
        facts_path(tmp_path).write_text(text)
        deployment._look_again_at_s = 0.0
        deployment._follow(router, service)
    assert said.getvalue().count("is not what `inflight triton` writes") == 1
    assert said.getvalue().count("was written by another version of inflight") == 1


def test_tritons_without_certificates_are_asked_only_where_that_is_said(tmp_path: Path) -> None:
    settings = deployment_settings(None, {"port": 0, "grpc_port": -1}, tmp_path)
    written = []
    for plain in (False, True):
        options = RouterOptions(("triton:8001",), plain_tritons=plain)
        deployment = RouterDeployment(settings, options, StackConsole())
        router = deployment._router(tmp_path / "router.toml")
        deployment._write(router, Served(()))
        written.append(router.settings_path.read_text())
    assert "plain_too" not in written[0]
    assert "secret" not in written[0]
    assert "plain_too = true" in written[1]
    assert f'secret = "{(tmp_path / "triton-secret").read_text()}"' in written[1]
