"""What changes for the launcher when the router's clients need certificates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path

import pytest

from launcher.packaging.models.checkpoint import Checkpoint
from launcher.packaging.models.fingerprint import Fingerprint
from launcher.settings import load_settings
from launcher.stack.router_process import BuiltIn, RouterProcess
from tests.launcher.stand_ins.stub_router import Handler


@pytest.fixture
def health_port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_routers_address_is_https_with_tls(tmp_path: Path) -> None:
    assert RouterProcess("127.0.0.1", 8443, tmp_path, tmp_path, tls=True).url == "https://127.0.0.1:8443"
    assert RouterProcess("::1", 8080, tmp_path, tmp_path).url == "http://[::1]:8080"


def test_readiness_is_checked_on_the_health_port_on_loopback(tmp_path: Path, health_port: int) -> None:
    router = RouterProcess("192.0.2.1", 8443, tmp_path / "router.toml", tmp_path, True, health_port)
    assert router.is_ready()
    text = BuiltIn(Checkpoint("text", Path("/text"), Path("/text")), Fingerprint("a", "b", 1))
    router.write_settings([], text, 30, {})
    assert f"health_port = {health_port}" in router.settings_path.read_text()


def test_the_routers_paths_are_relative_to_the_users_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "inflight.toml"
    file.write_text(
        '[router]\ntls_cert = "cert.pem"\ntls_key = "/k.pem"\nsafety_rules = ""\nstate_dir = "here"\n'
    )
    assert load_settings(file, {}).router == {
        "tls_cert": str(tmp_path / "cert.pem"),
        "tls_key": "/k.pem",
        "safety_rules": "",
        "state_dir": str(tmp_path / "here"),
    }
