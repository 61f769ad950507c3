"""The `inflight` command line."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from typer.testing import CliRunner

from launcher.commands.main import app
from launcher.settings import StackSettings
from tests.launcher.stand_ins.tiny_model import write_gguf
from tests.pace import patience

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS: Any = typer.main.get_command(app)


def options_of(command: str) -> set[str]:
    return {name for parameter in COMMANDS.commands[command].params for name in parameter.opts}


def test_the_command_line_offers_serving_measuring_chat_and_administration() -> None:
    serving = {"up", "perplexity", "version", "chat", "ask"}
    administration = {"tenants", "keys", "prices", "usage", "audit", "release", "slo", "tune"}
    apart = {"triton", "router"}
    assert set(COMMANDS.commands) >= serving | administration | apart | {"simulate"}


def test_every_stack_setting_has_a_flag() -> None:
    flags = {f"--{key.name.replace('_', '-')}" for key in fields(StackSettings)}
    assert options_of("up") == flags | {"--config"}


def test_the_hint_shown_when_the_stack_is_ready_is_a_real_option() -> None:
    assert "--url" in options_of("chat")


def test_version_names_inflight_triton_and_python() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert f"inflight {importlib.metadata.version('inflight')}" in result.output
    assert "nvidia-pytriton 0.7.0" in result.output
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "stack.port is 70000; allowed"),
        (["--config", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_unusable_settings_are_reported_in_one_sentence(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["up", "--data-dir", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--host", "0.0.0.0"], 2, "there are no API keys"),
        (["--model", "nowhere", "--port", "0"], 1, "'nowhere' is neither a known model"),
        (
            ["--model", "{stray}", "--port", "0", "--embeddings", ""],
            1,
            "'mamba' model, which this engine does not support",
        ),
        (
            ["--model", "{stray}", "--port", "0", "--embeddings", "nowhere"],
            1,
            "embeddings: 'nowhere' is neither all-minilm-l6-v2 nor a directory",
        ),
    ],
)
def test_an_impossible_start_is_reported_in_one_sentence(
    arguments: list[str], status: int, words: str, tmp_path: Path
) -> None:
    stray = tmp_path / "stray.gguf"
    write_gguf(stray, architecture="mamba")
    arguments = [argument.format(stray=stray) for argument in arguments]
    command = [sys.executable, "-m", "launcher", "up", "--data-dir", str(tmp_path), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(60))
    assert result.returncode == status
    assert words in result.stderr
    assert "Traceback" not in result.stderr
