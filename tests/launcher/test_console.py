"""What the user is shown."""

from __future__ import annotations

import errno
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from launcher.console import LastingConsole, StackConsole, own_command


def consoles(terminal: bool) -> tuple[StackConsole, StringIO]:
    output = StringIO()
    console = Console(file=output, force_terminal=terminal, highlight=False, width=60)
    return StackConsole(console, console), output


def test_without_a_terminal_each_stage_is_two_plain_lines() -> None:
    console, output = consoles(terminal=False)
    with console.stage("Downloading", total_bytes=100) as stage:
        stage.advance_to(50)
    assert output.getvalue() == "Downloading ...\nDownloading: 0.0 s\n"


def test_on_a_terminal_a_stage_has_a_bar() -> None:
    console, output = consoles(terminal=True)
    with console.stage("Downloading", total_bytes=100) as stage:
        stage.advance_to(50)
    assert "50%" in output.getvalue()


class DeadTerminal(StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("terminal", [False, True])
def test_work_goes_on_when_the_output_is_closed(terminal: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        for file in (pipe, DeadTerminal()):
            silent = LastingConsole(file=file, force_terminal=terminal)
            console, done = StackConsole(silent, silent), []
            with console.stage("Stopping"):
                done.append("drained")
            console.problem("it died", ["why"])
            assert done == ["drained"]


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    console, output = consoles(terminal=False)
    console.problem("died [red]", ["E1 [/bold] x"])
    assert output.getvalue() == "died [red]\n  E1 [/bold] x\n"


def test_the_hint_works_whether_or_not_the_environment_is_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert own_command() == "inflight"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(Path(sys.executable).parent.parent)
    assert own_command() == "bin/inflight"
