"""The commands of one group, asked as their user would on an installation of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import typer
from typer.testing import CliRunner, Result


class Shell:
    commands: ClassVar[typer.Typer]

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def ask(self, *words: str) -> Result:
        return CliRunner().invoke(self.commands, [*words, "--data-dir", str(self.data_dir)])

    def ask_with(self, typed: str, *words: str) -> Result:
        return CliRunner().invoke(self.commands, [*words, "--data-dir", str(self.data_dir)], input=typed)

    def __call__(self, *words: str) -> str:
        result = self.ask(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refusal(self, *words: str) -> str:
        """One line on stderr."""
        result = self.ask(*words)
        assert result.exit_code == 2, result.output
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith("inflight: ")
        return result.stderr
