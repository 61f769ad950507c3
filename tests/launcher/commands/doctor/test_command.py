"""`inflight doctor`, on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from launcher.commands.doctor import add_to
from launcher.commands.doctor.finding import failure
from tests.router.running import running_router


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr("launcher.commands.doctor.deployment_facts.local_tritons", list)
    # Each is a process of its own, tested where it belongs.
    nothing = {"gpus": [], "missing": "none", "torch": ""}
    monkeypatch.setattr("launcher.commands.doctor.machine_facts.engine_looks", lambda: nothing)
    monkeypatch.setattr("launcher.commands.doctor.installation.check_router_parts", lambda settings: [])
    app = typer.Typer()
    app.callback()(lambda: None)
    add_to(app)
    return app


async def test_a_running_router_is_asked_for_a_token_and_an_embedding(
    app: typer.Typer, tmp_path: Path
) -> None:
    async with running_router() as router:
        words = ["doctor", "--json", "--url", router.url, "--data-dir", str(tmp_path / "data")]
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
    found = json.loads(result.stdout)
    assert found.keys() == {"machine", "installation", "deployment"}
    deployment = {each["check"]: each["verdict"] for each in found["deployment"]}
    assert deployment["ready"] == "ok"
    assert deployment["model tiny"] == "ok"
    assert deployment["model tiny-vectors"] == "ok"
    assert deployment["version"] == "ok"
    assert not (tmp_path / "data").exists()


def test_unusable_settings_are_one_finding_among_others(app: typer.Typer, tmp_path: Path) -> None:
    config = tmp_path / "inflight.toml"
    config.write_text("[stack]\nport = 1\nnonsense = 1\n")
    result = CliRunner().invoke(app, ["doctor", "--config", str(config)])
    assert result.exit_code == 1
    assert "fail    settings: unknown key stack.nonsense" in result.output
    assert "-> correct it in inflight.toml" in result.output
    assert "ok      Python" in result.output


def test_the_exit_status_is_0_without_failures_and_1_with_one(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.commands.doctor.command._machine", lambda settings: [])
    monkeypatch.setattr("launcher.commands.doctor.command._installation", lambda settings, in_use: [])
    config = tmp_path / "inflight.toml"
    config.write_text("[stack]\nport = 1\n")
    words = ["doctor", "--config", str(config)]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "skipped live: nothing runs at" in result.output) == (0, True)
    wrong = [failure("disk", "it is full", "make room")]
    monkeypatch.setattr("launcher.commands.doctor.command._machine", lambda settings: wrong)
    assert CliRunner().invoke(app, words).exit_code == 1
