"""Output for a person at a terminal or reading a log: progress, news, problems and tables."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TimeElapsedColumn,
)

from client.screen_parts import Description
from client.terminal import Console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console as AnyConsole
    from rich.table import Table


class LastingConsole(Console):
    """Falls silent when its pipe or terminal is gone; rich would end the program, before it has drained."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What is still buffered must have somewhere to go, or Python's exit would fail on it.
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a terminal that was closed answers EIO
            self.on_broken_pipe()


class StackConsole:
    """Bars and spinners on a terminal, one plain line for each piece of news elsewhere."""

    def __init__(self, console: AnyConsole | None = None, errors: AnyConsole | None = None) -> None:
        self._console = console or LastingConsole()
        self._errors = errors or LastingConsole(stderr=True)

    @contextmanager
    def stage(
        self, label: str, total_bytes: int | None = None, total_steps: int | None = None
    ) -> Iterator[BarStage | SilentStage]:
        began_s = time.monotonic()
        if self._console.is_terminal:
            with progress_bar(self._console, total_bytes, total_steps) as bar:
                yield BarStage(bar, bar.add_task(label, total=total_bytes or total_steps))
        else:
            self.say(f"{label} ...")
            yield SilentStage()
        self.say(f"{label}: {time.monotonic() - began_s:.1f} s", style="dim")

    def say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, soft_wrap=True)

    def notice(self, text: str) -> None:
        """Something that is no failure, and that the user would not expect."""
        self.say(text, style="bold yellow")

    def show(self, table: Table) -> None:
        self._console.print(table)

    def problem(self, text: str, lines: list[str] | None = None) -> None:
        self._errors.print(text, style="bold red", markup=False, soft_wrap=True)
        for line in lines or []:
            self._errors.print(f"  {line}", style="dim", markup=False, soft_wrap=True)


class BarStage:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance_to(self, done: int) -> None:
        self._bar.update(self._task, completed=done)


class SilentStage:
    def advance_to(self, done: int) -> None:
        """Nothing to draw on."""


def own_command() -> str:
    """How the user can call this program again: by name, or by path when the environment is not activated."""
    return (
        "inflight" if shutil.which("inflight") else os.path.relpath(Path(sys.executable).parent / "inflight")
    )


def progress_bar(console: AnyConsole, total_bytes: int | None, total_steps: int | None) -> Progress:
    columns = [SpinnerColumn(), Description()]
    if total_bytes or total_steps:
        columns += [BarColumn(), TaskProgressColumn()]
    if total_bytes:
        columns += [DownloadColumn()]
    if total_steps:
        columns += [MofNCompleteColumn()]
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
