"""`inflight top` against a router's HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import typer
from typer.testing import CliRunner

from launcher.commands.top import add_to
from launcher.commands.top.metrics_pages import metrics_url
from tests.launcher.commands.top.test_view import NEW
from tests.pace import patience
from tests.router.running import running_router


class Page(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(NEW.encode())

    def log_message(self, *words: object) -> None:
        """Nothing is said."""


class Forbidden(Page):
    status = 403


@contextmanager
def served(page: type[Page]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), page) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr("launcher.commands.top.command.PERIOD_S", 0.01)
    monkeypatch.setattr("launcher.commands.top.metrics_pages.local_tritons", list)
    app = typer.Typer()
    app.callback()(lambda: None)
    add_to(app)
    return app


def test_top_once_prints_one_view(app: typer.Typer) -> None:
    with served(Page) as url:
        result = CliRunner().invoke(app, ["top", "--once", "--url", url])
    assert result.exit_code == 0
    assert "m@1" in result.output
    assert "inflight 9.9" in result.output


def test_without_the_scope_top_says_which_key_is_needed(app: typer.Typer) -> None:
    with served(Forbidden) as url:
        result = CliRunner().invoke(app, ["top", "--url", url])
    assert result.exit_code == 1
    assert "admin:read" in result.stderr
    assert "inflight keys create NAME --scope admin:read" in result.stderr


def test_a_named_triton_must_answer_and_others_need_not(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "http://127.0.0.1:1/metrics"
    with served(Page) as url:
        named = CliRunner().invoke(app, ["top", "--once", "--url", url, "--triton-metrics", away])
        monkeypatch.setattr("launcher.commands.top.metrics_pages.local_tritons", lambda: [away])
        found = CliRunner().invoke(app, ["top", "--once", "--url", url])
    assert (named.exit_code, found.exit_code) == (1, 0)
    assert f"--triton-metrics {away}" in named.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_an_unreachable_router_is_reported_by_top(app: typer.Typer, url: str) -> None:
    result = CliRunner().invoke(app, ["top", "--url", url])
    assert result.exit_code == 1
    assert url in result.stderr


async def test_top_reads_the_metrics_of_a_real_router(app: typer.Typer) -> None:
    async with running_router() as router:
        assert (await router.chat()).status_code == 200
        look = ["top", "--json", "--url", router.url]
        result = await asyncio.to_thread(CliRunner().invoke, app, look)
    assert result.exit_code == 0, result.output
    view = json.loads(result.stdout)
    assert view["version"]
    assert view["is_ready"] is True
    assert [each["model"] for each in view["releases"]] == ["tiny"]
    assert [each["tenant"] for each in view["tenants"]] == ["local"]


def test_top_refreshes_on_a_terminal_until_q(tmp_path: object) -> None:
    code = (
        "import sys\nfrom launcher.commands.top import command, metrics_pages\n"
        "metrics_pages.local_tritons = list\ncommand.PERIOD_S = 0.2\n"
        "command.top(url=sys.argv[1], key=None, triton_metrics=None, once=False, as_json=False)"
    )
    with served(Page) as url:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", code, url],
            stdin=theirs,
            stdout=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(theirs)
        shown = b""
        while b"m@1" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        reader = threading.Thread(target=_read_all, args=(ours,), daemon=True)
        reader.start()
        assert process.wait(timeout=patience(20)) == 0
        reader.join(patience(20))
        os.close(ours)


def _read_all(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # whoever wrote is gone
        return


@pytest.mark.parametrize(
    ("command", "url"),
    [
        (["tritonserver", "--metrics-port=8002"], "http://127.0.0.1:8002/metrics"),
        (["tritonserver", "--metrics-address=0.0.0.0", "--metrics-port=1"], "http://127.0.0.1:1/metrics"),
        (["tritonserver", "--metrics-address=10.0.0.1", "--metrics-port=1"], "http://10.0.0.1:1/metrics"),
        (["tritonserver"], None),
    ],
)
def test_a_tritons_metrics_address_is_read_from_its_command_line(command: list[str], url: str | None) -> None:
    assert metrics_url(command) == url
