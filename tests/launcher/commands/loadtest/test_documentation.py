"""What docs/loadtest.md says of commands, kinds and shapes is so."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from launcher.commands.main import app
from loadtest.shapes.curves import NAMES
from loadtest.users.options import KINDS, add_options

PAGE = (Path(__file__).parents[4] / "docs" / "loadtest.md").read_text()
OF_LOCUST = {"--host", "--headless", "--users", "--spawn-rate", "--run-time", "--class-picker", "--processes"}


class Parser(argparse.ArgumentParser):
    """As Locust's, which lets an option be kept off its page."""

    def add_argument(self, *names: str, include_in_web_ui: bool = True, **options: Any) -> argparse.Action:
        return super().add_argument(*names, **options)


def lines(beginning: str) -> list[str]:
    return re.findall(rf"^{beginning} ?(.*)$", PAGE, re.MULTILINE)


def test_every_documented_option_of_a_command_exists() -> None:
    command: Any = get_command(app)
    for name in ("loadtest", "run"):
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    commands = lines("inflight loadtest run")
    assert commands
    for line in commands:
        ours, _, passed_on = line.partition(" -- ")
        assert set(re.findall(r"--[a-z][a-z-]+", ours)) <= known
        assert set(re.findall(r"--[a-z][a-z-]+", passed_on)) <= OF_LOCUST
    locust_part = PAGE.split("## Locust\n")[1].split("\n## ")[0]
    mentioned = set(re.findall(r"`(--[a-z][a-z-]+)", locust_part))
    assert mentioned <= known | {"--results", "--class-picker"}


def test_every_documented_option_of_the_locustfile_exists() -> None:
    parser = Parser()
    add_options(parser)
    known = OF_LOCUST | {name for action in parser._actions for name in action.option_strings}
    commands = lines("locust -f loadtest/locustfile.py")
    assert commands
    for command in commands:
        assert set(re.findall(r"--[a-z][a-z-]+", command)) <= known


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_user_is_documented_with_its_class(kind: str) -> None:
    assert f"| `{kind}` | `{kind.capitalize()}User` |" in PAGE


@pytest.mark.parametrize("shape", NAMES)
def test_every_load_shape_is_documented(shape: str) -> None:
    assert f"| `{shape}` |" in PAGE
